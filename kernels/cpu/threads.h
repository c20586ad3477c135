// Threads that work on one step together, and how a step's work is dealt.
//
// A step is a fixed list of phases; a phase is a number of items. Whoever is free claims the next item, and a phase
// is over when its items are done, not when every thread has come by: a thread that the kernel put aside (cores are
// shared with the gateway and the queue) holds up only the item in its hands. Which thread does an item never
// changes a result.
//
//   run N     [ phase 0 ][ phase 1 ] … [ phase n ]  closed: the caller returns
//   member 1        claims 3, 5, …        (late: finds phases done, or no run, and goes back to sleep)
//
// A late member may still look at a run that is over, so runs use two boards in turn and a board is set up again only
// when no member looks at it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace headway {

inline void pause_briefly(unsigned turn) {
    // Some 10 µs of pauses, then the core goes to whoever else wants it: perhaps to the one we wait for.
    if (turn % 256 != 255) {
        __builtin_ia32_pause();
    } else {
        std::this_thread::yield();
    }
}

struct alignas(64) Counter {
    std::atomic<int32_t> next{0};
    alignas(64) std::atomic<int32_t> done{0};
};

// One run's counters, and who looks at them.
class Board {
  public:
    void open(int phases) {
        if (static_cast<int>(size_) < phases) {
            counters_.reset(new Counter[phases]);
            size_ = phases;
        }
        for (int phase = 0; phase < phases; ++phase) {
            counters_[phase].next.store(0, std::memory_order_relaxed);
            counters_[phase].done.store(0, std::memory_order_relaxed);
        }
    }

    // Do this member's share of a phase, and return when all of it is done.
    template <class Work>
    void phase(int index, int items, Work&& work) {
        Counter& counter = counters_[index];
        int finished = 0;
        for (int item; (item = counter.next.fetch_add(1, std::memory_order_relaxed)) < items;) {
            work(item);
            ++finished;
        }
        finish(index, finished, items);
    }

    // The same, but work(item, next) also learns which item this member does afterwards, or −1.
    template <class Work>
    void phase_ahead(int index, int items, Work&& work) {
        std::atomic<int32_t>& claims = counters_[index].next;
        auto claim = [&] {
            const int item = claims.fetch_add(1, std::memory_order_relaxed);
            return item < items ? item : -1;
        };
        int finished = 0;
        for (int item = claim(); item >= 0; ++finished) {
            const int next = claim();
            work(item, next);
            item = next;
        }
        finish(index, finished, items);
    }

    std::atomic<int32_t> members{0};

  private:
    void finish(int index, int finished, int items) {
        std::atomic<int32_t>& done = counters_[index].done;
        if (finished > 0) done.fetch_add(finished, std::memory_order_release);
        for (unsigned turn = 0; done.load(std::memory_order_acquire) < items; ++turn) pause_briefly(turn);
    }

    std::unique_ptr<Counter[]> counters_;
    int size_ = 0;
};

// What a run does on every member: all its phases in order.
class Run {
  public:
    virtual ~Run() = default;
    virtual void work(int member) = 0;
    Board board;
};

class Team {
  public:
    // `size` members, the caller among them; cores: where the others stay, or null.
    Team(int size, const int32_t* cores);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Let the others get ready: a run follows soon. Costs a system call when they sleep.
    void wake();

    // Wait until nobody looks at this run's board any more: it may be set up again.
    static void settle(Run& run);

    // Work on a run that was set up, with whoever comes; returns when it is done.
    void carry_out(Run& run);

  private:
    void serve(int member);
    uint32_t wait_for_bell(uint32_t heard);

    int size_;
    alignas(64) std::atomic<Run*> current_{nullptr};
    alignas(64) std::atomic<uint32_t> bell_{0};
    std::atomic<int32_t> sleepers_{0};
    std::atomic<bool> stopped_{false};
    std::vector<std::thread> threads_;
};

}  // namespace headway
