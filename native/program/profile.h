// Where the time of steps goes: by phase, summed over steps, prompts and decoding apart.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

namespace tuili {

struct Timing {
    int64_t calls = 0, rows = 0, nanoseconds = 0;
};

// Runs `body` and adds its time, where there is a place for it.
template <class F>
void timed(Timing* timing, int64_t rows, F&& body) {
    if (!timing) return body();
    const auto start = std::chrono::steady_clock::now();
    body();
    timing->nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    timing->calls++;
    timing->rows += rows;
}

// Timings of one kind of step, in the order of the plan.
struct StepTimings {
    Timing step, rope_tables, sampling;
    std::vector<Timing> token_phases, output_phases;
};

// A step is of kind 1 when it computes one token of each sequence (decoding), else of kind 0.
using Profile = std::array<StepTimings, 2>;

} // namespace tuili
