// Linear maps of bfloat16 on the tile unit of a processor (Intel AMX), for the engine while it samples.
//
// A row is multiplied by 32 values of K at a time, in order, and summed in float32. So its rounding depends neither on
// the other rows nor on the number of threads. oneDNN chooses the order by the number of rows.
// Built and called by core/engine/kernel.py.

#include <cstdint>

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace {

using bfloat16_bits = uint16_t;

constexpr int64_t TILE = 16;         // rows of a tile; a row has 16 float32 or 32 bfloat16
constexpr int64_t BLOCK = 2 * TILE;  // rows and columns that are computed at once: four tiles of sums
constexpr int64_t DEPTH = 32;        // values of K that one tile holds of a row
constexpr int64_t LINE = 64;         // bytes of a cache line, and of a row of a tile
constexpr int64_t NEAR_BYTES = 1 << 20;  // bytes of x that stay in the second cache while panels pass

// All eight tiles have 16 rows of 64 bytes. It is a constant, for some compilers do not see that it is read.
struct alignas(64) TileShapes {
    uint8_t palette = 1, first_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE};
    uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
};
const TileShapes SHAPES;

// Reads 16 numbers.
inline __m512 load(const bfloat16_bits* x) {
    const __m256i bits = _mm256_loadu_si256((const __m256i*)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Sums of a block that have yet to be rounded and stored. Tiles of the next block are multiplied at the same time.
struct Pending {
    const float* sums;
    const bfloat16_bits* bias;
    bfloat16_bits* out;
    int64_t width, row, rows;

    void store(int64_t count) {
        for (const int64_t end = std::min(rows, row + count); row < end; row++) {
            __m512 low = _mm512_load_ps(sums + row * BLOCK), high = _mm512_load_ps(sums + row * BLOCK + TILE);
            if (bias) {
                low = _mm512_add_ps(low, load(bias));
                high = _mm512_add_ps(high, load(bias + TILE));
            }
            _mm512_storeu_si512(out + row * width, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
};

// Multiplies BLOCK rows of x, or only the first TILE where x has no more, by the BLOCK columns of a panel.
// Meanwhile it stores `share` rows of the block before, and fetches `lines` of the next panel, at each step.
template <bool BOTH>
void multiply_block(const bfloat16_bits* x, const bfloat16_bits* panel, int64_t K, float* sums, Pending& pending,
                    int64_t share, const char* next, int64_t lines) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < K; k += DEPTH, panel += DEPTH * BLOCK) {
        for (int64_t i = 0; i < lines; i++, next += LINE) _mm_prefetch(next, _MM_HINT_T1);
        _tile_loadd(4, x + k, K * sizeof(*x));
        _tile_loadd(6, panel, LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + DEPTH * TILE, LINE);
        _tile_dpbf16ps(1, 4, 7);
        if (BOTH) {
            _tile_loadd(5, x + TILE * K + k, K * sizeof(*x));
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        pending.store(share);
    }
    const int64_t stride = BLOCK * sizeof(float);
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + TILE, stride);
    _tile_stored(2, sums + TILE * BLOCK, stride);
    _tile_stored(3, sums + TILE * BLOCK + TILE, stride);
}

void multiply(const bfloat16_bits* x, const bfloat16_bits* panels, const bfloat16_bits* bias, bfloat16_bits* out,
              int64_t M, int64_t K, int64_t N, int64_t threads) {
    // A tile is read whole, so the rows of the last block are copied, with zeros after them.
    const int64_t rest = M % BLOCK;
    std::vector<bfloat16_bits> last(rest ? BLOCK * K : 0);
    std::copy(x + (M - rest) * K, x + M * K, last.begin());
    const int64_t near = std::max(BLOCK, NEAR_BYTES / int64_t(K * sizeof(*x)) / BLOCK * BLOCK);
    const int64_t share = (BLOCK * DEPTH + K - 1) / K;
#pragma omp parallel num_threads(threads)
    {
        _tile_loadconfig(&SHAPES);
        alignas(64) float sums[2][BLOCK * BLOCK];
        int turn = 0;
        Pending pending{};
        for (int64_t begin = 0; begin < M; begin += near) {
            const int64_t end = std::min(M, begin + near), blocks = (end - begin + BLOCK - 1) / BLOCK;
            // The blocks fetch the next panel together, some lines at each step. Of one block alone a panel is used once:
            // it waits for this panel anyway.
            const int64_t lines = blocks == 1 ? 0 : (BLOCK + blocks - 1) / blocks;
#pragma omp for schedule(static) nowait
            for (int64_t n = 0; n < N; n += BLOCK) {
                const bfloat16_bits* panel = panels + n * K;
                auto next = (const char*)(panel + BLOCK * K);
                for (int64_t m = begin; m < end; m += BLOCK, next += lines * LINE * (K / DEPTH)) {
                    const int64_t rows = std::min(BLOCK, M - m);
                    const auto block = rows > TILE ? multiply_block<true> : multiply_block<false>;
                    block(rows < BLOCK ? last.data() : x + m * K, panel, K, sums[turn], pending, share, next, lines);
                    pending = {sums[turn], bias ? bias + n : nullptr, out + m * N + n, N, 0, rows};
                    turn ^= 1;
                }
            }
        }
        pending.store(BLOCK);
        _tile_release();
    }
}

}  // namespace

// Asks the system for the tile unit; returns whether this process may use it.
extern "C" int has_tiles() {
    const long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of Linux
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// x: [M, K]; panels: [N / 32, K / 32, 2, 16, 16, 2], see pack_panels in kernel.py; bias: [N] or null; out: [M, N].
extern "C" void multiply_bfloat16(const void* x, const void* panels, const void* bias, void* out,
                                  const int64_t* sizes) {
    multiply((const bfloat16_bits*)x, (const bfloat16_bits*)panels, (const bfloat16_bits*)bias, (bfloat16_bits*)out,
             sizes[0], sizes[1], sizes[2], sizes[3]);
}

#else

extern "C" int has_tiles() { return 0; }

#endif
