// The Python module: the only door between Python and the native backend.
#include "bind/bind.h"

NB_MODULE(_native, m) {
    m.doc() = "Native CPU backend";
    m.attr("__version__") = TUILI_VERSION;
}
