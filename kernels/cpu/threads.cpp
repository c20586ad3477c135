#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace headway {
namespace {

// How long a member stays awake after a run or a call to wake: about the pause between two steps. Longer would take a
// core from the processes that carry the answers away.
constexpr int64_t kAwakeNanoseconds = 60'000;

int64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void stay_on(std::thread& thread, int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    pthread_setaffinity_np(thread.native_handle(), sizeof cores, &cores);  // refused: it runs anywhere
}

}  // namespace

Team::Team(int size, const int32_t* cores) : size_(size) {
    for (int member = 1; member < size; ++member) {
        threads_.emplace_back([this, member] { serve(member); });
        if (cores != nullptr) stay_on(threads_.back(), cores[member]);
    }
}

Team::~Team() {
    stopped_.store(true);
    wake();
    for (std::thread& thread : threads_) thread.join();
}

void Team::wake() {
    bell_.fetch_add(1);
    if (sleepers_.load() > 0) {
        syscall(SYS_futex, &bell_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
}

void Team::settle(Run& run) {
    for (unsigned turn = 0; run.board.members.load(std::memory_order_acquire) > 0; ++turn) pause_briefly(turn);
}

void Team::carry_out(Run& run) {
    if (size_ > 1) {
        current_.store(&run);
        wake();
    }
    run.work(0);
    current_.store(nullptr);
}

void Team::serve(int member) {
    uint32_t heard = 0;
    while (!stopped_.load()) {
        Run* run = current_.load();
        if (run == nullptr) {
            heard = wait_for_bell(heard);
            continue;
        }
        // Seen before it was current again? Then it may be half set up: look once more, now that we are counted.
        run->board.members.fetch_add(1);
        if (current_.load() == run) run->work(member);
        run->board.members.fetch_sub(1);
        // The caller leaves a moment after the last item; until then the run still is the current one.
        for (unsigned turn = 0; current_.load() == run && !stopped_.load(); ++turn) pause_briefly(turn);
    }
}

// Until the bell rings or a run is there: awake for a while, then asleep. Returns the bell as it was seen.
uint32_t Team::wait_for_bell(uint32_t heard) {
    const int64_t until = nanoseconds() + kAwakeNanoseconds;
    for (unsigned turn = 1;; ++turn) {
        if (current_.load() != nullptr || stopped_.load()) return bell_.load();
        if (turn % 64 == 0 && nanoseconds() > until) break;
        pause_briefly(turn);
    }
    const uint32_t bell = bell_.load();
    if (bell != heard) return bell;  // rung since: stay awake once more
    sleepers_.fetch_add(1);
    if (current_.load() == nullptr && !stopped_.load()) {
        syscall(SYS_futex, &bell_, FUTEX_WAIT_PRIVATE, bell, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1);
    return bell;
}

}  // namespace headway
