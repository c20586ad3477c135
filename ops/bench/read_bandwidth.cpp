// Reading memory on a team of the kernels' own threads, and nothing else: the ceiling of a step that waits for weights.
#include <immintrin.h>
#include <time.h>

#include <algorithm>

#include "threads.h"

namespace {

constexpr int64_t kLine = 256;           // four vectors
constexpr int64_t kPiece = 512 * 1024;   // what a thread claims at a time: it begins seldom, and both end together

struct alignas(64) Sum {
    int64_t value = 0;
};

int64_t sum_of(const uint8_t* at, const uint8_t* end) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (; at < end; at += kLine) {
        a = _mm512_add_epi64(a, _mm512_load_si512(at));
        b = _mm512_add_epi64(b, _mm512_load_si512(at + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(at + 128));
        d = _mm512_add_epi64(d, _mm512_load_si512(at + 192));
        _mm_prefetch(reinterpret_cast<const char*>(at + 8192), _MM_HINT_T1);
    }
    return _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
}

class Reading : public headway::Run {
  public:
    void set_up(const uint8_t* bytes, int64_t count, int members) {
        bytes_ = bytes;
        count_ = count;
        sums_.assign(members, Sum());
        board.open(1);
    }

    void work(int member) override {
        board.phase(0, static_cast<int>((count_ + kPiece - 1) / kPiece), [&](int item) {
            sums_[member].value += sum_of(bytes_ + item * kPiece, bytes_ + std::min(count_, (item + 1) * kPiece));
        });
    }

    int64_t sum() const {
        int64_t all = 0;
        for (const Sum& one : sums_) all += one.value;
        return all;
    }

  private:
    const uint8_t* bytes_ = nullptr;
    int64_t count_ = 0;
    std::vector<Sum> sums_;
};

struct Readers {
    explicit Readers(int threads) : team(threads, nullptr) {}
    Reading readings[2];  // in turn, as threads.h wants it
    bool is_second = false;
    headway::Team team;  // last: its threads end before what they look at
};

double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

}  // namespace

extern "C" {

void* bench_open_readers(int threads) { return new Readers(threads); }

void bench_close_readers(void* readers) { delete static_cast<Readers*>(readers); }

// Read `count` bytes, a multiple of 256 at an address that is one of 64; seconds taken, and the sum as 64-bit words.
double bench_read_all(void* opened, const uint8_t* bytes, int64_t count, int64_t* sum) {
    Readers& readers = *static_cast<Readers*>(opened);
    Reading& reading = readers.readings[readers.is_second];
    readers.is_second = !readers.is_second;
    readers.team.wake();
    const double start = seconds();
    headway::Team::settle(reading);
    reading.set_up(bytes, count, readers.team.size());
    readers.team.carry_out(reading);
    const double taken = seconds() - start;
    *sum = reading.sum();
    return taken;
}
}
