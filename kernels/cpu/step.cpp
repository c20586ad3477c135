#include "step.h"

#include <time.h>
#include <x86intrin.h>

#include <new>

#include "forward.h"

namespace headway {
namespace {

int64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

class Context {
  public:
    Context(const HeadwayModel& model, int threads, const int32_t* cores)
        : model_(model), members_(threads), first_(model_, shared_, members_), second_(model_, shared_, members_),
          team_(threads, cores) {}

    void wake() { team_.wake(); }

    void step(HeadwayStep& step) {
        const int64_t started = nanoseconds();
        const uint64_t ticks = __rdtsc();
        Forward& run = is_second_ ? second_ : first_;
        is_second_ = !is_second_;
        Team::settle(run);
        run.set_up(step);
        team_.carry_out(run);
        // The run counts ticks; a step is long enough to tell how long one is.
        const double each = double(nanoseconds() - started) / double(__rdtsc() - ticks);
        for (int64_t& part : step.nanoseconds) part = static_cast<int64_t>(double(part) * each);
    }

  private:
    const HeadwayModel model_;
    Activations shared_;
    std::vector<MemberScratch> members_;
    Forward first_, second_;
    bool is_second_ = false;
    Team team_;  // last: its threads end before what they look at
};

}  // namespace
}  // namespace headway

using headway::Context;

void* headway_open(const HeadwayModel* model, int32_t threads, const int32_t* cores) {
    try {
        return new Context(*model, threads, cores);
    } catch (...) {  // no memory, or no more threads
        return nullptr;
    }
}

void headway_close(void* context) { delete static_cast<Context*>(context); }

void headway_wake(void* context) { static_cast<Context*>(context)->wake(); }

int32_t headway_step(void* context, HeadwayStep* step) {
    try {
        static_cast<Context*>(context)->step(*step);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
