#include "program/isa.h"
#include <stdexcept>

#if defined(__x86_64__) || defined(_M_X64)
#define TUILI_X86 1
#include <cpuid.h>
#endif

namespace tuili {

namespace {

#ifdef TUILI_X86
bool all_set(unsigned value, unsigned bits) { return (value & bits) == bits; }

unsigned long long extended_control_register() {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<unsigned long long>(high) << 32 | low;
}
#endif

Isa detect() {
#ifdef TUILI_X86
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::generic;
    constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
    if (!all_set(c, kFma | kOsxsave | kAvx | kF16c)) return Isa::generic;
    const unsigned long long saved = extended_control_register();
    if ((saved & 0x6) != 0x6) return Isa::generic; // xmm and ymm
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Isa::generic;
    constexpr unsigned kAvx2 = 1u << 5, kBmi2 = 1u << 8;
    if (!all_set(b, kAvx2 | kBmi2)) return Isa::generic;
    constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kVnni = 1u << 11;
    const bool avx512 = all_set(b, kF | kDq | kBw | kVl) && all_set(c, kVnni) && (saved & 0xe6) == 0xe6; // and opmask, zmm
    return avx512 ? Isa::avx512 : Isa::avx2;
#else
    return Isa::generic;
#endif
}

} // namespace

Isa best_isa() {
    static const Isa best = detect(); // asking the CPU is slow in a virtual machine
    return best;
}

Kernels kernels_of(Isa isa) {
    if (isa > best_isa()) throw std::invalid_argument("this CPU does not have that instruction set level");
#ifdef TUILI_X86
    if (isa == Isa::avx512) return {linear_avx512(), ops_avx512()};
    if (isa == Isa::avx2) return {linear_avx2(), ops_avx2()};
#endif
    return {linear_generic(), ops_generic()};
}

} // namespace tuili
