// What frame_codes.cu needs of a device: memory, barriers and tensor cores (SM 9.0 and later).

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct __align__(16) quad {
    u32 x, y, z, w;
};

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
#define PARAMETER const __grid_constant__
#define INFINITY_F __int_as_float(0x7F800000)

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE char* shared_base() {
    extern __shared__ __align__(128) char shared_memory[];
    return shared_memory;
}
DEVICE void trap() { __trap(); }
DEVICE long long cycles() { return clock64(); }

DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float reciprocal_root(float x) { return rsqrtf(x); }
DEVICE float exponential_2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float exponential(float x) { return exponential_2(x * 1.4426950408889634f); }
DEVICE float rooted_head_dim() { return rsqrtf((float)HEAD_DIM); }

// ---- a warp
DEVICE void sync_warp() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int by) { return __shfl_xor_sync(0xFFFFFFFFu, x, by); }
DEVICE double shuffle_up(double x, int by) { return __shfl_up_sync(0xFFFFFFFFu, x, by); }
DEVICE double shuffle_from(double x, int lane) { return __shfl_sync(0xFFFFFFFFu, x, lane); }
DEVICE int warp_count(int x) { return __reduce_add_sync(0xFFFFFFFFu, x); }

// (16, 16) by (16, 8) of bfloat16, added to float32; see PTX, mma.m16n8k16.
DEVICE void multiply_add(float* sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- a block
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }
DEVICE int add_shared(int* at, int x) { return atomicAdd(at, x); }
DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }
DEVICE void init_barrier(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
DEVICE void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void expect_bytes(u64* barrier, int count) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
                 : "memory");
}
DEVICE void wait_barrier(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni over;\nbra.uni again;\nover:\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// ---- memory
DEVICE void copy_bulk(void* to, const void* from, int count, u64* barrier, bool keeps) {
#if KEPT_LAYERS > 0
    u64 policy;
    if (keeps) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)), "l"(from), "r"(count), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
#else
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)), "l"(from), "r"(count), "r"(shared_address(barrier))
        : "memory");
#endif
}
DEVICE quad load_quad(const u16* at) {
    quad q;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(at));
    return q;
}
DEVICE u32 load_u32(const u32* at) {
    u32 x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
// Words are written and read whole, so that a word with its phase has its data.
DEVICE u64 load_word(const u64* at) {
    u64 x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
    return x;
}
DEVICE void load_two_words(const u64* at, u64& a, u64& b) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}
DEVICE void store_word(u64* at, u64 x) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(x) : "memory");
}
DEVICE u32 load_flag(const u32* at) { return load_u32(at); }
DEVICE void store_flag(u32* at, u32 x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
DEVICE void pause_poll() {
#ifdef POLL_PAUSE_NS
    __nanosleep(POLL_PAUSE_NS);
#endif
}
