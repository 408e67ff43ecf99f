// NumPy arrays as typed pointers.
#pragma once
#include <cstring>
#include <deque>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace tuili {

namespace nb = nanobind;

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A matrix of which somebody else keeps the memory.
template <class T>
struct MatrixView {
    const T* data;
    int64_t rows, cols;
};

// Reads the array fields of a Python object, and keeps the arrays alive. Through the buffer protocol: a step has thirty fields,
// and nanobind's general import of an array costs ten times as much.
class Fields {
  public:
    explicit Fields(nb::handle object) : object_(object) {}
    ~Fields() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }
    Fields(const Fields&) = delete;
    Fields& operator=(const Fields&) = delete;

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
    MatrixView<T> matrix(const char* name) {
        return matrix<T>(object_.attr(name), name);
    }
    template <class T>
    MatrixView<T> matrix_in(const char* name, size_t index) {
        return matrix<T>(object_.attr(name)[index], name);
    }
    // A list whose length the caller knows only as "at least".
    template <class T>
    const T* list(const char* name, size_t at_least) {
        const Py_buffer& view = take<T>(object_.attr(name), name, 1);
        if (static_cast<size_t>(view.shape[0]) < at_least) throw std::invalid_argument(std::string(name) + " is too short");
        return static_cast<const T*>(view.buf);
    }

  private:
    template <class T>
    static constexpr const char* kCodes = std::is_same_v<T, float> ? "f"
                                          : std::is_unsigned_v<T>  ? "ILQ"
                                                                   : "ilq";

    // The view belongs to this object; arrays are contiguous, in native byte order.
    template <class T>
    const Py_buffer& take(const nb::object& array, const char* name, int ndim) {
        Py_buffer& view = views_.emplace_back();
        if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            views_.pop_back();
            throw nb::python_error();
        }
        const bool same = view.itemsize == sizeof(T) && view.format[0] != '\0' && std::strchr(kCodes<T>, view.format[0]);
        if (!same || view.ndim != ndim)
            throw std::invalid_argument(std::string(name) + " has the wrong type or number of dimensions");
        return view;
    }

    template <class T>
    const T* vector(const nb::object& array, const char* name, size_t size) {
        const Py_buffer& view = take<T>(array, name, 1);
        if (static_cast<size_t>(view.shape[0]) != size)
            throw std::invalid_argument(std::string(name) + " has " + std::to_string(view.shape[0]) + " entries, not " +
                                        std::to_string(size));
        return static_cast<const T*>(view.buf);
    }

    template <class T>
    MatrixView<T> matrix(const nb::object& array, const char* name) {
        const Py_buffer& view = take<T>(array, name, 2);
        return {static_cast<const T*>(view.buf), static_cast<int64_t>(view.shape[0]), static_cast<int64_t>(view.shape[1])};
    }

    nb::handle object_;
    std::deque<Py_buffer> views_; // whose shapes may point into themselves
};

} // namespace tuili
