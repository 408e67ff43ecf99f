// Binding threads to CPUs, where the system can.
#pragma once
#include <thread>

namespace tuili {

// Throws std::invalid_argument when the system does not let the thread run there.
void pin_thread(std::thread& thread, int cpu);

// Binds the calling thread for as long as this lives; then it may run where it could before.
class PinnedHere {
  public:
    explicit PinnedHere(int cpu); // kAnyCpu: does nothing
    ~PinnedHere();
    PinnedHere(const PinnedHere&) = delete;
    PinnedHere& operator=(const PinnedHere&) = delete;

    static constexpr int kAnyCpu = -1;

  private:
    void* before_ = nullptr; // the CPU set to go back to
};

} // namespace tuili
