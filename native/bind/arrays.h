// NumPy arrays as typed pointers.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace tuili {

namespace nb = nanobind;

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Reads the array fields of a Python object, and keeps the arrays alive.
class Fields {
  public:
    explicit Fields(nb::handle object) : object_(object) {}

    template <class T>
    const T* vector(const char* name, size_t size) {
        return vector<T>(object_.attr(name), name, size);
    }
    // A field that is a sequence of arrays.
    template <class T>
    const T* vector_in(const char* name, size_t index, size_t size) {
        return vector<T>(object_.attr(name)[index], name, size);
    }
    template <class T>
    Array2<const T> matrix_in(const char* name, size_t index) {
        nb::object array = object_.attr(name)[index];
        owners_.push_back(array);
        return nb::cast<Array2<const T>>(array);
    }
    // A list whose length the caller knows only as "at least".
    template <class T>
    const T* list(const char* name, size_t at_least) {
        nb::object object = object_.attr(name);
        const auto array = nb::cast<Array1<const T>>(object);
        owners_.push_back(object);
        if (array.shape(0) < at_least) throw std::invalid_argument(std::string(name) + " is too short");
        return array.data();
    }

  private:
    template <class T>
    const T* vector(nb::object object, const char* name, size_t size) {
        const auto array = nb::cast<Array1<const T>>(object);
        owners_.push_back(object);
        if (array.shape(0) != size)
            throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.shape(0)) + " entries, not " +
                                        std::to_string(size));
        return array.data();
    }

    nb::handle object_;
    std::vector<nb::object> owners_;
};

} // namespace tuili
