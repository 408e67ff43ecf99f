// What the kernels need from the compiler.
#pragma once

#define TUILI_INLINE inline __attribute__((always_inline))
// Loops over registers.
#define TUILI_UNROLL _Pragma("GCC unroll 64")
#define TUILI_KEEP_LOOP _Pragma("GCC unroll 1")
