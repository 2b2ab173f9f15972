// Draws codebooks 1.. of one frame: all passes of a small decoder in one launch.
//
// One block runs on each multiprocessor for the whole launch, and the blocks never wait for all
// others at once. What a product reads are words of 64 bits: two bfloat16 numbers and the number of
// the phase that wrote them. A reader loads the words until all have its phase, so that data and
// signal arrive together. A warp of each block does nothing but copy the block's weights, in the
// order in which they will be used, to a ring in shared memory: it waits for room only, never for
// data, so the memory is read while the other warps wait for each other's results.
//
// Products are of 8 outputs ("octets") and all rows, on tensor cores: weights are the second factor
// (8 columns), rows the first (16 rows). A row's sums do not depend on other rows. The 8 warps
// divide the inputs of each stage; their sums are added through shared memory.
//
// Why no buffer needs two copies: every output of a phase depends on all outputs of the phase before
// (attention: of its head), so the block that writes a buffer again knows that all have read it.
//
// The macros without a default are sizes of the model; see frame_codes.py.

#ifndef STAGES
#define STAGES 11
#endif
#ifndef KEPT_LAYERS  // whose weights should stay in the L2 cache from pass to pass
#define KEPT_LAYERS 0
#endif
#ifndef POLLS_ONE_FROM  // rows from which a thread first polls one of its words
#define POLLS_ONE_FROM 17
#endif
#ifndef MOST_POLLS
#define MOST_POLLS (1 << 21)
#endif
#ifndef TRAPS  // whether giving up ends the process's work on the device
#define TRAPS 0
#endif
#ifndef TIMED
#define TIMED 0
#endif
// For measurements of one part alone; results are meaningless.
#ifndef ONLY_WEIGHTS
#define ONLY_WEIGHTS 0
#endif
#ifndef NO_WEIGHTS
#define NO_WEIGHTS 0
#endif

#ifndef WARPS
#define WARPS 8
#endif
#ifndef IN_FLIGHT  // stages being copied at once: more would only make all other reads wait longer
#define IN_FLIGHT 3
#endif
#define CONSUMERS (WARPS * 32)
#define CHUNK HIDDEN             // inputs of one stage
#define SLICE (CHUNK / WARPS)    // of one warp
#define STEPS (SLICE / 32)       // of 32 inputs
#define ROW_BYTES (CHUNK * 2 + 64)  // 64 more, so that two rows are in different banks
#define STAGE_BYTES (8 * ROW_BYTES)
#define QUERIES (HEADS * HEAD_DIM)
#define KEYS (KV_HEADS * HEAD_DIM)
#define GROUP (HEADS / KV_HEADS)
#define QKV (QUERIES + 2 * KEYS)
#define PASSES (CODEBOOKS - 1)
#define PHASES_PER_PASS (LAYERS * 5 + 2)
#define MOST_ROWS 16
#define ROUND 4   // units of a round; of gate and up:
#define GATED_ROUND 3
#define SUMS_BYTES (6 * WARPS * MOST_ROWS * 8 * 4)
#define KEPT_UNITS ((HIDDEN / 8 + BLOCKS - 1) / BLOCKS)
#define CANDIDATES 64
#define PICKED_PAIRS (VOCABULARY / 2 / CONSUMERS)

#ifdef EMULATED
#include "emulated.h"
#else
#include "frame_codes_device.h"
#endif

enum Phase { P_QKV, P_ATTEND, P_OUT, P_GATED, P_DOWN, P_HEAD, P_DRAW, NUM_PHASES };

struct Params {
    const u16* qkv[LAYERS];      // (QKV, HIDDEN), with the norm before it
    const u16* out[LAYERS];      // (HIDDEN, QUERIES)
    const u16* gated[LAYERS];    // (2 INTERMEDIATE, HIDDEN), with the norm before it
    const u16* down[LAYERS];     // (HIDDEN, INTERMEDIATE)
    const u16* q_norm[LAYERS];   // (HEAD_DIM,)
    const u16* k_norm[LAYERS];
    const u16* heads[PASSES];    // (VOCABULARY, HIDDEN) each
    const u16* embeds[PASSES];   // of the codes of codebooks 1..: (VOCABULARY, HIDDEN)
    const u16* norm;             // (HIDDEN,)
    const u16* cos;              // (positions, HEAD_DIM / 2)
    const u16* sin;
    const u16* x;                // (rows, 2, HIDDEN)
    const long long* seed;       // (rows,) and so on, as RowSampling
    const long long* step;
    const float* scale;
    const int* top_k;
    const float* top_p;
    long long* ids;              // (rows, PASSES)
    u32* launches;               // [0] phases of all launches so far, [1] set if a wait was given up
    u64* words;                  // see the offsets below
    u16* cache;                  // (2, LAYERS, rows, KV_HEADS, CODEBOOKS, HEAD_DIM)
    u16* logits;                 // (rows, PASSES, VOCABULARY) for tests, or null
    long long* times;            // (BLOCKS, NUM_PHASES, 4) cycles, or null
    float eps;
    int rows;
};

// Places in `words`.
#define X_WORDS 0
#define X1_WORDS (X_WORDS + MOST_ROWS * HIDDEN / 2)
#define QKV_WORDS (X1_WORDS + MOST_ROWS * HIDDEN / 2)
#define ATT_WORDS (QKV_WORDS + MOST_ROWS * QKV / 2)
#define GATED_WORDS (ATT_WORDS + MOST_ROWS * QUERIES / 2)
#define LOGIT_WORDS (GATED_WORDS + MOST_ROWS * INTERMEDIATE / 2)
#define ID_WORDS (LOGIT_WORDS + MOST_ROWS * VOCABULARY / 2)

struct Shared {
    float sums[SUMS_BYTES / 4];
    float squares[2][WARPS][MOST_ROWS];
    float residual[KEPT_UNITS][MOST_ROWS][8];
    int counts[2][WARPS];
    int found[CANDIDATES];
    int sorted[CANDIDATES];
    int num_found;
    long long times[NUM_PHASES][4];
    u64 full[STAGES];
    u64 empty[STAGES];
};

#define SHARED_BYTES (STAGES * STAGE_BYTES + sizeof(Shared))

DEVICE float of_bits(u32 bits) { return float_of(bits); }
DEVICE float low(u32 pair) { return of_bits(pair << 16); }
DEVICE float high(u32 pair) { return of_bits(pair & 0xFFFF0000u); }
DEVICE u32 rounded(float x) {  // to bfloat16, to nearest even; NaN stays NaN
    u32 bits = bits_of(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}
DEVICE u32 paired(float a, float b) { return rounded(a) | (rounded(b) << 16); }
DEVICE float as_half(float x) { return of_bits(rounded(x) << 16); }

struct Ring {
    char* stages;
    u64 *full, *empty;
    int stage;
    u32 parity;
    METHOD void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// What a thread knows everywhere.
struct Here {
    const Params* p;
    Shared* shared;
    int thread, warp, lane, block;
    int rows;      // of the request
    u32 phase;     // number of the phase, never repeated
    bool failed;
    int turn;
    int sent;      // stages that the copying warp has sent
    Ring ring;
    long long clock;
};

DEVICE u64* words_at(const Here& h, int place) { return h.p->words + place; }
DEVICE void put(u64* word, u32 pair, u32 phase) { store_word(word, ((u64)phase << 32) | pair); }

DEVICE void tick(Here& h, int phase, int part) {
#if TIMED
    if (h.thread == 0) {
        long long now = cycles();
        h.shared->times[phase][part] += now - h.clock;
        h.clock = now;
    }
#endif
}

DEVICE void give_up(Here& h) {
    h.failed = true;
    store_flag(h.p->launches + 1, 1);
    if (TRAPS) trap();
}

// Whether to poll again; counts polls.
DEVICE bool polls(Here& h, int& count) {
    if (h.failed) return false;
    if (++count >= MOST_POLLS) give_up(h);
    else if ((count & 0x3FF) == 0 && load_flag(h.p->launches + 1)) h.failed = true;
    pause_poll();
    return !h.failed;
}

// ---- weights ------------------------------------------------------------------------------------
DEVICE int units_of(int total, int block) { return block < total ? (total - block + BLOCKS - 1) / BLOCKS : 0; }

// Copy 8 rows of CHUNK inputs, from one row of the weight to the next `inputs` apart.
DEVICE void send_stage(Here& h, const u16* from, int inputs, bool keeps) {
    if (NO_WEIGHTS) return;
    Ring& ring = h.ring;
    wait_barrier(ring.empty + ring.stage, ring.parity ^ 1);
    if (IN_FLIGHT < STAGES) {  // the stage that was sent IN_FLIGHT before this one is there
        bool around = ring.stage < IN_FLIGHT;
        if (h.sent >= IN_FLIGHT)
            wait_barrier(ring.full + ring.stage - IN_FLIGHT + (around ? STAGES : 0), ring.parity ^ around);
        h.sent += 1;
    }
    if (h.lane == 0) expect_bytes(ring.full + ring.stage, 8 * CHUNK * 2);
    sync_warp();
    if (h.lane < 8) {
        char* to = ring.stages + ring.stage * STAGE_BYTES + h.lane * ROW_BYTES;
        copy_bulk(to, from + (long long)h.lane * inputs, CHUNK * 2, ring.full + ring.stage, keeps);
    }
    ring.next();
}

DEVICE void send_weight(Here& h, const u16* weight, int outputs, int inputs, bool keeps) {
    for (int unit = h.block; unit < outputs / 8; unit += BLOCKS)
        for (int chunk = 0; chunk < inputs / CHUNK; ++chunk)
            send_stage(h, weight + (long long)unit * 8 * inputs + chunk * CHUNK, inputs, keeps);
}

DEVICE void send_gated(Here& h, const u16* weight, bool keeps) {
    for (int unit = h.block; unit < INTERMEDIATE / 8; unit += BLOCKS)
        for (int half = 0; half < 2; ++half)
            send_stage(h, weight + ((long long)half * INTERMEDIATE + unit * 8) * HIDDEN, HIDDEN, keeps);
}

DEVICE void send_all(Here& h) {
    const Params& p = *h.p;
    for (int pass = 0; pass < PASSES; ++pass) {
        for (int layer = 0; layer < LAYERS; ++layer) {
            bool keeps = layer < KEPT_LAYERS;
            send_weight(h, p.qkv[layer], QKV, HIDDEN, keeps);
            send_weight(h, p.out[layer], HIDDEN, QUERIES, keeps);
            send_gated(h, p.gated[layer], keeps);
            send_weight(h, p.down[layer], HIDDEN, INTERMEDIATE, keeps);
        }
        send_weight(h, p.heads[pass], VOCABULARY, HIDDEN, false);
    }
}

// ---- rows that a product reads ------------------------------------------------------------------
// A thread holds, of rows `lane / 4` and, if WIDE, `lane / 4 + 8`, 8 numbers of each 32 inputs.
template <int CHUNKS, bool WIDE> struct Rows {
    quad part[WIDE ? 2 : 1][CHUNKS * STEPS];
};

DEVICE int first_input(const Here& h, int chunk, int step) {
    return chunk * CHUNK + h.warp * SLICE + step * 32 + (h.lane & 3) * 8;
}

// Wait for words of this phase's predecessor. `stride` is the number of words from row to row,
// `every` and `at` choose one of `every` rows.
template <int CHUNKS, bool WIDE>
DEVICE void load_words(Here& h, Rows<CHUNKS, WIDE>& rows, const u64* words, int stride, int count,
                       int every, int at) {
    const u32 wanted = h.phase - 1;
    int num_polls = 0;
    if (ONLY_WEIGHTS) count = 0;
    bool inside[2];
    const u64* from[2];
#pragma unroll
    for (int half = 0; half < (WIDE ? 2 : 1); ++half) {
        int row = (h.lane >> 2) + 8 * half;
        inside[half] = row < count;
        from[half] = words + (long long)((inside[half] ? row : 0) * every + at) * stride;
    }
    if (count >= POLLS_ONE_FROM && inside[0]) {
        const u64* last = from[0] + first_input(h, CHUNKS - 1, STEPS - 1) / 2;
        while ((u32)(load_word(last) >> 32) != wanted && polls(h, num_polls)) {
        }
    }
    bool again;
    do {
        bool there = true;
#pragma unroll
        for (int half = 0; half < (WIDE ? 2 : 1); ++half)
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    quad& part = rows.part[half][chunk * STEPS + step];
                    part = quad{0, 0, 0, 0};
                    if (!inside[half]) continue;
                    u64 a, b, c, d;
                    const u64* word = from[half] + first_input(h, chunk, step) / 2;
                    load_two_words(word, a, b);
                    load_two_words(word + 2, c, d);
                    there &= (u32)(a >> 32) == wanted && (u32)(b >> 32) == wanted &&
                             (u32)(c >> 32) == wanted && (u32)(d >> 32) == wanted;
                    part = quad{(u32)a, (u32)b, (u32)c, (u32)d};
                }
        again = !there && polls(h, num_polls);
    } while (again);
    sync_warp();
}

// The row of the id that the last phase drew for a row of the request.
DEVICE const u16* embedded(Here& h, int pass, int row) {
    if (ONLY_WEIGHTS) return h.p->x;
    const u64* word = words_at(h, ID_WORDS) + row;
    u64 id = load_word(word);
    int num_polls = 0;
    const u32 wanted = h.phase;
    while ((u32)(id >> 32) != wanted && polls(h, num_polls)) id = load_word(word);
    u32 place = (u32)id < VOCABULARY ? (u32)id : 0;  // garbage only after a wait was given up
    return h.p->embeds[pass - 1] + (long long)place * HIDDEN;
}

template <bool WIDE> DEVICE void load_inputs(Here& h, Rows<1, WIDE>& rows, int pass, int count) {
#pragma unroll
    for (int half = 0; half < (WIDE ? 2 : 1); ++half) {
        int row = (h.lane >> 2) + 8 * half;
        const u16* from = h.p->x;
        if (pass == 0) from += (long long)(row < count ? row : 0) * HIDDEN;
        else if (row < count) {
            h.phase -= 1;  // of the draw
            from = embedded(h, pass, row);
            h.phase += 1;
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            rows.part[half][step] = row < count ? load_quad(from + first_input(h, 0, step)) : quad{0, 0, 0, 0};
    }
    sync_warp();
}

DEVICE float squares_of(quad q) {
    float sum = 0;
    u32 pairs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += low(pairs[i]) * low(pairs[i]) + high(pairs[i]) * high(pairs[i]);
    return sum;
}

// Write this warp's sums of squares of each row, for the epilogue.
template <int CHUNKS, bool WIDE> DEVICE void sum_squares(Here& h, const Rows<CHUNKS, WIDE>& rows) {
#pragma unroll
    for (int half = 0; half < (WIDE ? 2 : 1); ++half) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < CHUNKS * STEPS; ++i) sum += squares_of(rows.part[half][i]);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if ((h.lane & 3) == 0) h.shared->squares[h.turn & 1][h.warp][(h.lane >> 2) + 8 * half] = sum;
    }
}

DEVICE float root_of(const Here& h, int row) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += h.shared->squares[h.turn & 1][warp][row];
    return reciprocal_root(sum / HIDDEN + h.p->eps);
}

// ---- products -----------------------------------------------------------------------------------
struct Sum {
    float part[4];
};

// Add one stage's product to a sum.
template <int CHUNKS, bool WIDE>
DEVICE void multiply(Here& h, Sum& sum, const Rows<CHUNKS, WIDE>& rows, int chunk) {
    Ring& ring = h.ring;
    if (!NO_WEIGHTS) wait_barrier(ring.full + ring.stage, ring.parity);
    const char* from = ring.stages + ring.stage * STAGE_BYTES + (h.lane >> 2) * ROW_BYTES;
    quad weights[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        weights[step] = *(const quad*)(from + (h.warp * SLICE + step * 32 + (h.lane & 3) * 8) * 2);
    Sum sums[STEPS];  // one for each step, so that no product waits long for the one before
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        quad a = rows.part[0][chunk * STEPS + step], w = weights[step];
        quad b = WIDE ? rows.part[WIDE ? 1 : 0][chunk * STEPS + step] : quad{0, 0, 0, 0};
        sums[step] = Sum{{0, 0, 0, 0}};
        multiply_add(sums[step].part, a.x, b.x, a.y, b.y, w.x, w.y);
        multiply_add(sums[step].part, a.z, b.z, a.w, b.w, w.z, w.w);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.part[i] += sums[step].part[i];
    sync_warp();
    if (!NO_WEIGHTS && h.lane == 0) arrive(ring.empty + ring.stage);
    ring.next();
}

// Sums of the warps: [sum][warp][row][8].
template <bool WIDE> DEVICE float* sums_at(Here& h, int index, int warp, int row) {
    const int rows = WIDE ? 16 : 8;
    float* sums = h.shared->sums + (WIDE ? 0 : (h.turn & 1) * (SUMS_BYTES / 8));
    return sums + ((index * WARPS + warp) * rows + row) * 8;
}

template <bool WIDE> DEVICE void share(Here& h, int index, const Sum& sum) {
    float* to = sums_at<WIDE>(h, index, h.warp, h.lane >> 2) + (h.lane & 3) * 2;
    to[0] = sum.part[0], to[1] = sum.part[1];
    if (WIDE) {
        to = sums_at<WIDE>(h, index, h.warp, (h.lane >> 2) + 8) + (h.lane & 3) * 2;
        to[0] = sum.part[2], to[1] = sum.part[3];
    }
}

template <bool WIDE> DEVICE void joined(Here& h, int index, int row, int column, float& a, float& b) {
    a = b = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        const float* from = sums_at<WIDE>(h, index, warp, row) + column;
        a += from[0], b += from[1];
    }
}

// Multiply rows with a weight; `write(unit, row, column, a, b)` gets two outputs of a row.
// The squares must have been summed before, if `write` needs them.
template <int CHUNKS, int HALVES, bool WIDE, class Write>
DEVICE void product(Here& h, int phase, const Rows<CHUNKS, WIDE>& rows, int outputs, int count, Write write) {
    const int round = HALVES == 2 ? GATED_ROUND : ROUND;
    int units = units_of(outputs / 8, h.block);
    for (int first = 0; first < units; first += round) {
        int here = units - first < round ? units - first : round;
        Sum sums[round * HALVES];
#pragma unroll
        for (int i = 0; i < round * HALVES; ++i) {
            sums[i] = Sum{{0, 0, 0, 0}};
            if (i < here * HALVES) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) multiply(h, sums[i], rows, chunk);
                share<WIDE>(h, i, sums[i]);
            }
        }
        tick(h, phase, 1);
        sync_consumers();
        const int most = WIDE ? 16 : 8;
        for (int at = h.thread; at < here * most * 4; at += CONSUMERS) {
            int row = (at >> 2) % most, place = (at >> 2) / most, column = (at & 3) * 2;
            if (row >= count) continue;
            float a, b;
            if (HALVES == 2) {
                float c, d;
                joined<WIDE>(h, place * 2, row, column, a, b);
                joined<WIDE>(h, place * 2 + 1, row, column, c, d);
                float root = root_of(h, row);
                a *= root, b *= root, c *= root, d *= root;
                a = a / (1.0f + exponential(-a)) * c;
                b = b / (1.0f + exponential(-b)) * d;
            } else {
                joined<WIDE>(h, place, row, column, a, b);
            }
            write(first + place, row, column, a, b);
        }
        if (WIDE || first + round < units) sync_consumers();
        tick(h, phase, 2);
    }
}

template <bool WIDE> DEVICE void project_qkv(Here& h, int pass, int layer, int count) {
    Rows<1, WIDE> rows;
    if (layer == 0) load_inputs(h, rows, pass, count);
    else load_words(h, rows, words_at(h, X_WORDS), HIDDEN / 2, count, 1, 0);
    tick(h, P_QKV, 0);
    h.turn += 1;
    sum_squares(h, rows);
    u64* to = words_at(h, QKV_WORDS);
    product<1, 1, WIDE>(h, P_QKV, rows, QKV, count, [&](int unit, int row, int column, float a, float b) {
        float root = root_of(h, row);
        int output = (unit * BLOCKS + h.block) * 8 + column;
        put(to + (row * QKV + output) / 2, paired(a * root, b * root), h.phase);
    });
}

template <bool WIDE> DEVICE void project_out(Here& h, int pass, int layer, int count) {
    Rows<QUERIES / CHUNK, WIDE> rows;
    if (h.block < HIDDEN / 8) load_words(h, rows, words_at(h, ATT_WORDS), QUERIES / 2, count, 1, 0);
    tick(h, P_OUT, 0);
    h.turn += 1;
    u64* to = words_at(h, X1_WORDS);
    product<QUERIES / CHUNK, 1, WIDE>(h, P_OUT, rows, HIDDEN, count, [&](int unit, int row, int column, float a, float b) {
        int output = (unit * BLOCKS + h.block) * 8 + column;
        float* kept = &h.shared->residual[unit][row][column];
        if (layer == 0) {
            const u16* from = h.p->x + (long long)row * HIDDEN;
            if (pass > 0) {
                h.phase -= 3;  // of the draw
                from = embedded(h, pass, row);
                h.phase += 3;
            }
            kept[0] = of_bits((u32)from[output] << 16), kept[1] = of_bits((u32)from[output + 1] << 16);
        }
        kept[0] = as_half(a + kept[0]), kept[1] = as_half(b + kept[1]);
        put(to + (row * HIDDEN + output) / 2, paired(kept[0], kept[1]), h.phase);
    });
}

template <bool WIDE> DEVICE void project_gated(Here& h, int count) {
    Rows<1, WIDE> rows;
    load_words(h, rows, words_at(h, X1_WORDS), HIDDEN / 2, count, 1, 0);
    tick(h, P_GATED, 0);
    h.turn += 1;
    sum_squares(h, rows);
    u64* to = words_at(h, GATED_WORDS);
    product<1, 2, WIDE>(h, P_GATED, rows, INTERMEDIATE, count, [&](int unit, int row, int column, float a, float b) {
        int output = (unit * BLOCKS + h.block) * 8 + column;
        put(to + (row * INTERMEDIATE + output) / 2, paired(a, b), h.phase);
    });
}

template <bool WIDE> DEVICE void project_down(Here& h, int count) {
    Rows<INTERMEDIATE / CHUNK, WIDE> rows;
    if (h.block < HIDDEN / 8) load_words(h, rows, words_at(h, GATED_WORDS), INTERMEDIATE / 2, count, 1, 0);
    tick(h, P_DOWN, 0);
    h.turn += 1;
    u64* to = words_at(h, X_WORDS);
    product<INTERMEDIATE / CHUNK, 1, WIDE>(h, P_DOWN, rows, HIDDEN, count, [&](int unit, int row, int column, float a, float b) {
        int output = (unit * BLOCKS + h.block) * 8 + column;
        float* kept = &h.shared->residual[unit][row][column];
        kept[0] = as_half(a + kept[0]), kept[1] = as_half(b + kept[1]);
        put(to + (row * HIDDEN + output) / 2, paired(kept[0], kept[1]), h.phase);
    });
}

DEVICE quad normed(quad x, float root, const u16* weight) {
    quad w = load_quad(weight);
    u32 from[4] = {x.x, x.y, x.z, x.w}, by[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        from[i] = paired(as_half(low(from[i]) * root) * low(by[i]), as_half(high(from[i]) * root) * high(by[i]));
    return quad{from[0], from[1], from[2], from[3]};
}

// Logits of each row's last token.
DEVICE void project_head(Here& h, int pass, int tokens) {
    Rows<1, false> rows;
    load_words(h, rows, words_at(h, X_WORDS), HIDDEN / 2, h.rows, tokens, tokens - 1);
    tick(h, P_HEAD, 0);
    h.turn += 1;
    sum_squares(h, rows);
    sync_consumers();
    float root = root_of(h, h.lane >> 2);
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        rows.part[0][step] = normed(rows.part[0][step], root, h.p->norm + first_input(h, 0, step));
    u64* to = words_at(h, LOGIT_WORDS);
    product<1, 1, false>(h, P_HEAD, rows, VOCABULARY, h.rows, [&](int unit, int row, int column, float a, float b) {
        int output = (unit * BLOCKS + h.block) * 8 + column;
        put(to + (row * VOCABULARY + output) / 2, paired(a, b), h.phase);
        if (h.p->logits) {
            u16* logits = h.p->logits + ((long long)row * PASSES + pass) * VOCABULARY + output;
            logits[0] = (u16)rounded(a), logits[1] = (u16)rounded(b);
        }
    });
}

// ---- attention ----------------------------------------------------------------------------------
// A lane holds 4 numbers of a head: 2 l, 2 l + 1, and those half a head behind, which rotate them.
struct Part {
    float a, b, c, d;
};

DEVICE Part widened(u32 first, u32 second) { return Part{low(first), high(first), low(second), high(second)}; }

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int by = 16; by; by >>= 1) x += shuffle_xor(x, by);
    return x;
}

DEVICE Part turned(const Here& h, Part x, const u16* norm, int position) {
    float squares = warp_sum(x.a * x.a + x.b * x.b + x.c * x.c + x.d * x.d);
    float root = reciprocal_root(squares / HEAD_DIM + h.p->eps);
    const u32* weights = (const u32*)norm;
    u32 first = weights[h.lane], second = weights[HEAD_DIM / 4 + h.lane];
    x.a *= root * low(first), x.b *= root * high(first), x.c *= root * low(second), x.d *= root * high(second);
    u32 cos = ((const u32*)h.p->cos)[position * (HEAD_DIM / 4) + h.lane];
    u32 sin = ((const u32*)h.p->sin)[position * (HEAD_DIM / 4) + h.lane];
    return Part{as_half(x.a * low(cos) - x.c * low(sin)), as_half(x.b * high(cos) - x.d * high(sin)),
                as_half(x.c * low(cos) + x.a * low(sin)), as_half(x.d * high(cos) + x.b * high(sin))};
}

DEVICE bool load_part(const u64* words, int lane, u32 wanted, Part& part) {
    u64 first = load_word(words + lane), second = load_word(words + HEAD_DIM / 4 + lane);
    part = widened((u32)first, (u32)second);
    return (u32)(first >> 32) == wanted && (u32)(second >> 32) == wanted;
}

DEVICE float product_of(const Part& q, const Part& k) {
    return q.a * k.a + q.b * k.b + q.c * k.c + q.d * k.d;
}

// One head of queries of one token: past keys are in the cache, new ones among the words.
DEVICE void attend(Here& h, int layer, int row, int kv_head, int head, int token, int tokens, int start) {
    const int most = CODEBOOKS - 1;
    const long long plane = (long long)LAYERS * h.rows * KV_HEADS * CODEBOOKS * HEAD_DIM;
    u16* keys = h.p->cache + (((long long)layer * h.rows + row) * KV_HEADS + kv_head) * CODEBOOKS * HEAD_DIM;
    u32 past[most][4];
#pragma unroll
    for (int j = 0; j < most; ++j) {
        past[j][0] = past[j][1] = past[j][2] = past[j][3] = 0;
        if (j < start) {
            const u32 *k = (const u32*)(keys + j * HEAD_DIM), *v = (const u32*)(keys + plane + j * HEAD_DIM);
            past[j][0] = load_u32(k + h.lane), past[j][1] = load_u32(k + HEAD_DIM / 4 + h.lane);
            past[j][2] = load_u32(v + h.lane), past[j][3] = load_u32(v + HEAD_DIM / 4 + h.lane);
        }
    }
    const u64* words = words_at(h, QKV_WORDS) + (row * tokens) * (QKV / 2);
    const u64* own = words + token * (QKV / 2);
    Part q, k[2] = {}, v[2] = {};
    int num_polls = 0;
    bool there;
    do {
        there = load_part(own + head * (HEAD_DIM / 2), h.lane, h.phase - 1, q);
#pragma unroll
        for (int t = 0; t < 2; ++t)
            if (t < tokens) {
                const u64* of = words + t * (QKV / 2) + kv_head * (HEAD_DIM / 2);
                there &= load_part(of + QUERIES / 2, h.lane, h.phase - 1, k[t]);
                there &= load_part(of + (QUERIES + KEYS) / 2, h.lane, h.phase - 1, v[t]);
            }
    } while (!there && polls(h, num_polls));
    sync_warp();
    q = turned(h, q, h.p->q_norm[layer], start + token);
#pragma unroll
    for (int t = 0; t < 2; ++t)
        if (t < tokens) k[t] = turned(h, k[t], h.p->k_norm[layer], start + t);
    float scores[most + 2], largest = -1e30f;
#pragma unroll
    for (int j = 0; j < most; ++j) scores[j] = product_of(q, widened(past[j][0], past[j][1]));
#pragma unroll
    for (int t = 0; t < 2; ++t) scores[most + t] = product_of(q, k[t]);
    // all sums at once: one after the other, each would wait five times for a shuffle
#pragma unroll
    for (int by = 16; by; by >>= 1)
#pragma unroll
        for (int j = 0; j < most + 2; ++j) scores[j] += shuffle_xor(scores[j], by);
#pragma unroll
    for (int j = 0; j < most + 2; ++j) {
        bool seen = j < most ? j < start : j - most <= token;
        scores[j] = seen ? scores[j] * (rooted_head_dim() * 1.4426950408889634f) : -INFINITY_F;
        largest = fmaxf(largest, scores[j]);
    }
    float total = 0;
    Part sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < most + 2; ++j) {
        float weight = exponential_2(scores[j] - largest);
        Part value = j < most ? widened(past[j < most ? j : 0][2], past[j < most ? j : 0][3]) : v[j < most ? 0 : j - most];
        total += weight;
        sum.a += weight * value.a, sum.b += weight * value.b, sum.c += weight * value.c, sum.d += weight * value.d;
    }
    u64* to = words_at(h, ATT_WORDS) + (row * tokens + token) * (QUERIES / 2) + head * (HEAD_DIM / 2);
    put(to + h.lane, paired(sum.a / total, sum.b / total), h.phase);
    put(to + HEAD_DIM / 4 + h.lane, paired(sum.c / total, sum.d / total), h.phase);
    if (head % GROUP == 0) {  // no lane reads these before several barriers have passed
#pragma unroll
        for (int t = 0; t < 2; ++t)
            if (t == token) {
                u32* at = (u32*)(keys + (start + t) * HEAD_DIM);
                at[h.lane] = paired(k[t].a, k[t].b), at[HEAD_DIM / 4 + h.lane] = paired(k[t].c, k[t].d);
                at = (u32*)(keys + plane + (start + t) * HEAD_DIM);
                at[h.lane] = paired(v[t].a, v[t].b), at[HEAD_DIM / 4 + h.lane] = paired(v[t].c, v[t].d);
            }
    }
}

DEVICE void attend_all(Here& h, int layer, int tokens, int start) {
    if (ONLY_WEIGHTS) return;
    for (int unit = BLOCKS - 1 - h.block; unit < h.rows * KV_HEADS; unit += BLOCKS)
        for (int part = h.warp; part < tokens * GROUP; part += WARPS) {
            int row = unit / KV_HEADS, kv_head = unit % KV_HEADS;
            attend(h, layer, row, kv_head, kv_head * GROUP + part % GROUP, part / GROUP, tokens, start);
        }
    tick(h, P_ATTEND, 0);
}

// ---- draws --------------------------------------------------------------------------------------
DEVICE u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

DEVICE double uniform(long long seed, long long step, int codebook) {
    u64 bits = mixed(mixed((u64)seed + 0x9E3779B97F4A7C15ull) ^ (u64)(step * 64 + codebook));
    return (double)(long long)(bits >> 11) * 1.1102230246251565e-16;
}

DEVICE int key_of(u32 half, int id) {  // sorts like (logit, -id)
    int bits = half == 0x8000 ? 0 : (int)(half << 16) >> 16;  // zero has two bit patterns
    return (int)((u32)(bits ^ ((bits >> 31) & 0x7FFF)) << 16) | (0xFFFF - id);
}

DEVICE float value_of(int key) {
    int ordered = key >> 16;
    return of_bits((u32)(ordered ^ ((ordered >> 31) & 0x7FFF)) << 16);
}

DEVICE int count_from(Here& h, const int* keys, int turn, int least) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < 2 * PICKED_PAIRS; ++i) count += keys[i] >= least;
    count = warp_count(count);
    if (h.lane == 0) h.shared->counts[turn & 1][h.warp] = count;
    sync_consumers();
    count = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) count += h.shared->counts[turn & 1][warp];
    return count;
}

DEVICE double sum_below(double x, int lane) {  // inclusive sum over the lanes
#pragma unroll
    for (int by = 1; by < 32; by <<= 1) {
        double other = shuffle_up(x, by);
        if (lane >= by) x += other;
    }
    return x;
}

// One warp: the distribution of sorted candidates, inverted at a uniform number.
DEVICE int chosen(Here& h, int row, int count, int codebook) {
    const Params& p = *h.p;
    float temperature = p.scale[row], nucleus = p.top_p[row];
    bool greedy = temperature < 1e-5f;
    float values[2], weights[2], top = value_of(h.shared->sorted[0]) / (greedy ? 1.0f : temperature);
    double wide[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int rank = h.lane * 2 + i;
        values[i] = rank < count ? value_of(h.shared->sorted[rank]) / (greedy ? 1.0f : temperature) : -INFINITY_F;
        weights[i] = rank < count ? exponential(values[i] - top) : 0.0f;
    }
    float total = warp_sum(weights[0] + weights[1]);
    wide[0] = weights[0] / total, wide[1] = weights[1] / total;
    double reached = sum_below(wide[0] + wide[1], h.lane);
    double limit = nucleus < 1.0f ? (double)nucleus : 2.0;
    double before[2] = {reached - wide[1] - wide[0], reached - wide[1]};
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (before[i] >= limit && h.lane * 2 + i > 0) wide[i] = 0;
    reached = sum_below(wide[0] + wide[1], h.lane);
    double all = shuffle_from(reached, 31);
    double target = uniform(p.seed[row], p.step[row], codebook) * all;
    int place = warp_count((reached - wide[1] <= target) + (reached <= target));
    int last = warp_count((wide[0] > 0) + (wide[1] > 0)) - 1;
    place = greedy ? 0 : (place < last ? place : last);
    return 0xFFFF - (h.shared->sorted[place] & 0xFFFF);
}

DEVICE void draw_row(Here& h, int pass, int row) {
    if (ONLY_WEIGHTS) return;
    Shared& shared = *h.shared;
    const u64* words = words_at(h, LOGIT_WORDS) + row * (VOCABULARY / 2);
    int keys[2 * PICKED_PAIRS];
    int num_polls = 0;
    bool there;
    if (h.thread == 0) shared.num_found = 0;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < PICKED_PAIRS; ++i) {
            int pair = i * CONSUMERS + h.thread;
            u64 word = load_word(words + pair);
            there &= (u32)(word >> 32) == h.phase - 1;
            keys[2 * i] = key_of((u32)word & 0xFFFF, pair * 2);
            keys[2 * i + 1] = key_of(((u32)word >> 16) & 0xFFFF, pair * 2 + 1);
        }
    } while (!there && polls(h, num_polls));
    sync_consumers();
    tick(h, P_DRAW, 0);
    int wanted = h.p->scale[row] < 1e-5f ? 1 : h.p->top_k[row];
    wanted = wanted < 1 || wanted > CANDIDATES ? CANDIDATES : wanted;
    // the largest number that at least `wanted` keys reach, bit by bit
    u32 least = 0;  // with the sign turned, so that the order is that of unsigned numbers
    for (int bit = 31, turn = 0; bit >= 0; --bit, ++turn) {
        u32 tried = least | (1u << bit);
        int count = count_from(h, keys, turn, (int)(tried ^ 0x80000000u));
        if (count >= wanted) least = tried;
        if (count == wanted) break;
    }
#pragma unroll
    for (int i = 0; i < 2 * PICKED_PAIRS; ++i)
        if (keys[i] >= (int)(least ^ 0x80000000u)) {
            int at = add_shared(&shared.num_found, 1);
            if (at < CANDIDATES) shared.found[at] = keys[i];
        }
    sync_consumers();
    if (h.thread < wanted) {
        int mine = shared.found[h.thread], rank = 0;
        for (int i = 0; i < wanted; ++i) rank += shared.found[i] > mine;
        shared.sorted[rank] = mine;
    }
    sync_consumers();
    if (h.warp == 0) {
        int id = chosen(h, row, wanted, pass + 1);
        if (h.lane == 0) {
            put(words_at(h, ID_WORDS) + row, (u32)id, h.phase);
            h.p->ids[(long long)row * PASSES + pass] = id;
        }
    }
    tick(h, P_DRAW, 1);
}

// ---- the frame ----------------------------------------------------------------------------------
template <bool WIDE> DEVICE void run_layers(Here& h, int pass) {
    int tokens = pass == 0 ? 2 : 1, count = h.rows * tokens, start = pass == 0 ? 0 : pass + 1;
    for (int layer = 0; layer < LAYERS; ++layer) {
        project_qkv<WIDE>(h, pass, layer, count);
        h.phase += 1;
        attend_all(h, layer, tokens, start);
        h.phase += 1;
        project_out<WIDE>(h, pass, layer, count);
        h.phase += 1;
        project_gated<WIDE>(h, count);
        h.phase += 1;
        project_down<WIDE>(h, count);
        h.phase += 1;
    }
}

KERNEL frame_codes(PARAMETER Params p) {
    char* shared_memory = shared_base();
    Here h;
    h.p = &p;
    h.shared = (Shared*)(shared_memory + STAGES * STAGE_BYTES);
    h.thread = thread_index(), h.warp = h.thread >> 5, h.lane = h.thread & 31, h.block = block_index();
    h.rows = p.rows;
    h.phase = load_flag(p.launches) + 1;
    h.failed = false;
    h.turn = 0;
    h.sent = 0;
    h.ring = Ring{shared_memory, h.shared->full, h.shared->empty, 0, 0};
    if (h.thread == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init_barrier(h.shared->full + i, 1);
            init_barrier(h.shared->empty + i, WARPS);
        }
        fence_barriers();
    }
    if (h.thread < NUM_PHASES * 4) h.shared->times[h.thread / 4][h.thread % 4] = 0;
    sync_block();
    h.clock = cycles();
    if (h.warp == WARPS) {
        send_all(h);
        return;
    }
    for (int pass = 0; pass < PASSES; ++pass) {
        if (pass == 0 && 2 * h.rows > 8) run_layers<true>(h, pass);
        else run_layers<false>(h, pass);
        project_head(h, pass, pass == 0 ? 2 : 1);
        h.phase += 1;
        for (int row = BLOCKS - 1 - h.block; row < h.rows; row += BLOCKS) draw_row(h, pass, row);
        tick(h, P_DRAW, 2);
        h.phase += 1;
    }
    // all blocks have read the count: each has taken part in what the last draw depends on
    if (h.block == BLOCKS - 1 && h.thread == 0) store_flag(p.launches, h.phase - 1);
#if TIMED
    if (p.times && h.thread == 0)
        for (int i = 0; i < NUM_PHASES * 4; ++i) p.times[h.block * NUM_PHASES * 4 + i] = h.shared->times[i / 4][i % 4];
#endif
}

#ifdef EMULATED
static const Params* given;
extern "C" void launch(const Params* p, unsigned seed) {
    given = p;
    run_fibers([] { frame_codes(*given); }, BLOCKS, SHARED_BYTES, seed);
}
#endif
