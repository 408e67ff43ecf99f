// What the kernels need from the compiler. A build that prefers small code to speed (tests under emulation) may define its own.
#pragma once

#ifndef TUILI_INLINE
#define TUILI_INLINE inline __attribute__((always_inline))
#endif
#define TUILI_KEEP_LOOP _Pragma("GCC unroll 1")
// Loops over registers.
#ifndef TUILI_UNROLL
#define TUILI_UNROLL _Pragma("GCC unroll 64")
#endif
