// Runs frame_codes.cu on a CPU: each thread is a fiber, which yields wherever it waits.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(16) quad {
    u32 x, y, z, w;
};

#define DEVICE static inline
#define METHOD
#define KERNEL static void
#define PARAMETER const
#define INFINITY_F INFINITY

#define THREADS 288
#define STACK (256 << 10)

struct Warp {
    int arrived, generation;
    double in[32][6], out[32][4];
    int active;
};
struct Barrier {  // of a block
    int arrived, generation;
};
struct Block {
    char* memory;
    Warp warps[9];
    Barrier all, consumers;
};
struct Fiber {
    ucontext_t context;
    char* stack;
    int thread, block;
    bool done;
};

static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static ucontext_t scheduler;
static Fiber* current;
static long long idle;

static void yield() { swapcontext(&current->context, &scheduler); }
// What waits must be true some day.
#define WAIT_UNTIL(condition)                                                        \
    for (long long waited = 0; !(condition); ++waited) {                             \
        if (waited > 50000000) {                                                     \
            fprintf(stderr, "thread %d of block %d waits for ever: " #condition "\n", \
                    current->thread, current->block);                                \
            abort();                                                                 \
        }                                                                            \
        yield();                                                                     \
    }

DEVICE int thread_index() { return current->thread; }
DEVICE int block_index() { return current->block; }
DEVICE char* shared_base() { return blocks[current->block].memory; }
DEVICE void trap() { abort(); }
DEVICE long long cycles() { return 0; }
DEVICE float float_of(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
DEVICE u32 bits_of(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
DEVICE float reciprocal_root(float x) { return 1.0f / sqrtf(x); }
DEVICE float exponential_2(float x) { return exp2f(x); }
DEVICE float exponential(float x) { return expf(x); }
DEVICE float rooted_head_dim() { return 1.0f / sqrtf((float)HEAD_DIM); }

// All lanes of a warp meet; the last one runs `work(warp)`.
template <class Work> static void together(Work work) {
    Warp& warp = blocks[current->block].warps[current->thread >> 5];
    int generation = warp.generation;
    if (++warp.arrived == 32) {
        work(warp);
        warp.arrived = 0, warp.generation += 1;
    } else {
        WAIT_UNTIL(warp.generation != generation);
    }
}
static Warp& own_warp() { return blocks[current->block].warps[current->thread >> 5]; }
static int own_lane() { return current->thread & 31; }

DEVICE void sync_warp() { together([](Warp&) {}); }
static double exchanged(double x, int from) {  // every lane has a lane to read from
    own_warp().in[own_lane()][0] = x;
    own_warp().in[own_lane()][1] = from;
    together([](Warp& w) {
        for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = w.in[(int)w.in[lane][1]][0];
    });
    return own_warp().out[own_lane()][0];
}
DEVICE float shuffle_xor(float x, int by) { return (float)exchanged(x, own_lane() ^ by); }
DEVICE double shuffle_up(double x, int by) { return exchanged(x, own_lane() >= by ? own_lane() - by : own_lane()); }
DEVICE double shuffle_from(double x, int lane) { return exchanged(x, lane); }
DEVICE int warp_count(int x) {
    own_warp().in[own_lane()][0] = x;
    together([](Warp& w) {
        double sum = 0;
        for (int lane = 0; lane < 32; ++lane) sum += w.in[lane][0];
        for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = sum;
    });
    return (int)own_warp().out[own_lane()][0];
}
static void unpack(double pair, double* to) {
    u32 bits = (u32)pair;
    to[0] = float_of(bits << 16), to[1] = float_of(bits & 0xFFFF0000u);
}
DEVICE void multiply_add(float* sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    for (int i = 0; i < 6; ++i) own_warp().in[own_lane()][i] = mine[i];
    together([](Warp& w) {
        static double a[16][16], b[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            int g = lane >> 2, t = lane & 3;
            double pair[2];
            for (int i = 0; i < 4; ++i) {
                unpack(w.in[lane][i], pair);
                int row = g + 8 * (i & 1), k = 2 * t + 8 * (i >> 1);
                a[row][k] = pair[0], a[row][k + 1] = pair[1];
            }
            for (int i = 0; i < 2; ++i) {
                unpack(w.in[lane][4 + i], pair);
                b[2 * t + 8 * i][g] = pair[0], b[2 * t + 8 * i + 1][g] = pair[1];
            }
        }
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 4; ++i) {
                int row = (lane >> 2) + 8 * (i >> 1), column = (lane & 3) * 2 + (i & 1);
                double x = 0;
                for (int k = 0; k < 16; ++k) x += a[row][k] * b[k][column];
                w.out[lane][i] = x;
            }
    });
    for (int i = 0; i < 4; ++i) sum[i] += (float)own_warp().out[own_lane()][i];
}

static void meet(Barrier& barrier, int count) {
    int generation = barrier.generation;
    if (++barrier.arrived == count) barrier.arrived = 0, barrier.generation += 1;
    else WAIT_UNTIL(barrier.generation != generation);
}
DEVICE void sync_block() { meet(blocks[current->block].all, THREADS); }
DEVICE void sync_consumers() { meet(blocks[current->block].consumers, 256); }
DEVICE int add_shared(int* at, int x) { int before = *at; *at += x; return before; }

// A barrier of shared memory: arrivals wanted, arrivals and bytes missing, and the parity.
struct MemoryBarrier {
    short count, missing, parity, bytes;  // bytes in units of 16
};
DEVICE void init_barrier(u64* barrier, int count) { *(MemoryBarrier*)barrier = MemoryBarrier{(short)count, (short)count, 0, 0}; }
DEVICE void fence_barriers() {}
static void complete(MemoryBarrier* b) {
    if (b->missing == 0 && b->bytes == 0) b->parity ^= 1, b->missing = b->count;
}
DEVICE void arrive(u64* barrier) {
    MemoryBarrier* b = (MemoryBarrier*)barrier;
    b->missing -= 1;
    complete(b);
}
DEVICE void expect_bytes(u64* barrier, int count) {
    ((MemoryBarrier*)barrier)->bytes += count / 16;
    arrive(barrier);
}
DEVICE void wait_barrier(u64* barrier, u32 parity) { WAIT_UNTIL((u32)((MemoryBarrier*)barrier)->parity != parity); }
DEVICE void copy_bulk(void* to, const void* from, int count, u64* barrier, bool) {
    if (((size_t)to | (size_t)from | count) & 15) fprintf(stderr, "not aligned\n"), abort();
    memcpy(to, from, count);
    ((MemoryBarrier*)barrier)->bytes -= count / 16;
    complete((MemoryBarrier*)barrier);
}
DEVICE quad load_quad(const u16* at) { return *(const quad*)at; }
DEVICE u32 load_u32(const u32* at) { return *at; }
DEVICE u64 load_word(const u64* at) { return *at; }
DEVICE void load_two_words(const u64* at, u64& a, u64& b) { a = at[0], b = at[1]; }
DEVICE void store_word(u64* at, u64 x) { *at = x; }
DEVICE u32 load_flag(const u32* at) { return *at; }
DEVICE void store_flag(u32* at, u32 x) { *at = x; }
DEVICE void pause_poll() { yield(); }

// Run `kernel()` in every thread of every block, in an order drawn from `seed`.
static void (*kernel_of_fibers)();
static void start() {
    kernel_of_fibers();
    current->done = true;
    yield();
}
static void run_fibers(void (*kernel)(), int num_blocks, size_t shared_bytes, unsigned seed) {
    kernel_of_fibers = kernel;
    blocks.assign(num_blocks, Block());
    fibers.assign(num_blocks * THREADS, Fiber());
    for (Block& block : blocks) block.memory = (char*)aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
    std::vector<int> order;
    for (int i = 0; i < num_blocks * THREADS; ++i) {
        Fiber& fiber = fibers[i];
        fiber.thread = i % THREADS, fiber.block = i / THREADS, fiber.done = false;
        fiber.stack = (char*)malloc(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack, fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = 0;
        makecontext(&fiber.context, start, 0);
        order.push_back(i);
    }
    size_t left = fibers.size();
    while (left) {
        for (int i : order) {
            if (fibers[i].done) continue;
            current = &fibers[i];
            swapcontext(&scheduler, &current->context);
            left -= fibers[i].done;
        }
        seed = seed * 1664525u + 1013904223u;  // another order in each round
        int at = seed % order.size(), by = (seed >> 8) % order.size(), kept = order[at];
        order[at] = order[by], order[by] = kept;
    }
    for (Block& block : blocks) free(block.memory);
    for (Fiber& fiber : fibers) free(fiber.stack);
}
