// Linear maps for the engine while it samples: of bfloat16 on the tile unit of a processor (Intel AMX), and of float32
// on AMD's processors. Built and called by core/engine/kernel.py.

#include <algorithm>
#include <cstdint>

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

// A row is multiplied by 32 values of K at a time, in order, and summed in float32. So its rounding depends neither on
// the other rows nor on the number of threads. oneDNN chooses the order by the number of rows.
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

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))

#include <immintrin.h>

#include <array>
#include <utility>

// On AMD's processors PyTorch's product (MKL) uses half of what AVX-512 can do, and arranges the weight anew in each
// call. This one sums as MKL does there for four rows and twelve outputs or more, one value of K after the other in
// chunks, and so has its bits. Fewer rows MKL sums otherwise; here a row is rounded alike whatever the other rows and
// the threads are.
namespace {

#if defined(__AVX512F__)
using Vector = __m512;
inline Vector load(const float* x) { return _mm512_loadu_ps(x); }
inline Vector fill(float x) { return _mm512_set1_ps(x); }
inline Vector multiply_add(Vector x, Vector y, Vector sum) { return _mm512_fmadd_ps(x, y, sum); }
inline Vector add(Vector x, Vector y) { return _mm512_add_ps(x, y); }
inline void store(float* out, Vector x) { _mm512_storeu_ps(out, x); }
constexpr int MOST_ROWS = 12;  // rows whose sums fit into the registers, beside one panel of the weight
#else
using Vector = __m256;
inline Vector load(const float* x) { return _mm256_loadu_ps(x); }
inline Vector fill(float x) { return _mm256_set1_ps(x); }
inline Vector multiply_add(Vector x, Vector y, Vector sum) { return _mm256_fmadd_ps(x, y, sum); }
inline Vector add(Vector x, Vector y) { return _mm256_add_ps(x, y); }
inline void store(float* out, Vector x) { _mm256_storeu_ps(out, x); }
constexpr int MOST_ROWS = 6;
#endif
constexpr int64_t LANES = sizeof(Vector) / sizeof(float);
constexpr int64_t WIDTH = 2 * LANES;  // outputs of a panel
constexpr int FEW_ROWS = MOST_ROWS / 2;  // so few rows take two panels at once, which keeps as many sums going
constexpr int64_t NEAR_ROWS = 16 * MOST_ROWS;  // rows of x that stay in the second cache while panels pass

int64_t chunk_of(int64_t K) { return K <= 192 ? K : K <= 384 ? K / 2 : 192; }

// Multiplies ROWS rows of x by the outputs of PANELS panels, of which `left` or fewer are there.
template <int PANELS, int ROWS>
void multiply_rows(const float* x, const float* panels, const float* bias, float* out, int64_t K, int64_t N,
                   int64_t left) {
    constexpr int VECTORS = 2 * PANELS;
    left = std::min<int64_t>(left, PANELS * WIDTH);
    alignas(64) float edge[PANELS * WIDTH] = {};
    if (bias) std::copy(bias, bias + left, edge);
    Vector totals[ROWS][VECTORS];
    for (auto& row : totals)
        for (int v = 0; v < VECTORS; v++) row[v] = load(edge + v * LANES);
    for (int64_t k = 0, chunk = chunk_of(K); k < K;) {
        Vector sums[ROWS][VECTORS];
        for (auto& row : sums)
            for (Vector& sum : row) sum = fill(0);
        for (const int64_t end = std::min(K, k + chunk); k < end; k++) {
            Vector weights[VECTORS];
            for (int v = 0; v < VECTORS; v++)
                weights[v] = load(panels + (v / 2 * K + k) * WIDTH + v % 2 * LANES);
            for (int r = 0; r < ROWS; r++) {
                const Vector value = fill(x[r * K + k]);
                for (int v = 0; v < VECTORS; v++) sums[r][v] = multiply_add(value, weights[v], sums[r][v]);
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) totals[r][v] = add(totals[r][v], sums[r][v]);
    }
    for (int r = 0; r < ROWS; r++, out += N) {
        float* const whole = left == PANELS * WIDTH ? out : edge;
        for (int v = 0; v < VECTORS; v++) store(whole + v * LANES, totals[r][v]);
        if (whole == edge) std::copy(edge, edge + left, out);
    }
}

template <int PANELS, int... R>
constexpr auto list_by_rows(std::integer_sequence<int, R...>) {
    return std::array{multiply_rows<PANELS, R + 1>...};
}
constexpr auto ONE_PANEL = list_by_rows<1>(std::make_integer_sequence<int, MOST_ROWS>());
constexpr auto TWO_PANELS = list_by_rows<2>(std::make_integer_sequence<int, FEW_ROWS>());

void multiply(const float* x, const float* panels, const float* bias, float* out, int64_t M, int64_t K, int64_t N,
              int64_t threads) {
    const int64_t step = M <= FEW_ROWS ? 2 * WIDTH : WIDTH, parts = (M + NEAR_ROWS - 1) / NEAR_ROWS;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t part = 0; part < parts; part++) {
        for (int64_t n = 0; n < N; n += step) {
            const int64_t begin = part * NEAR_ROWS, end = std::min(M, begin + NEAR_ROWS);
            const int64_t blocks = (end - begin + MOST_ROWS - 1) / MOST_ROWS;
            const int64_t most = (end - begin + blocks - 1) / blocks;
            for (int64_t m = begin; m < end; m += most) {
                const int64_t rows = std::min(most, end - m);
                const auto block = N - n > WIDTH && step > WIDTH ? TWO_PANELS[rows - 1] : ONE_PANEL[rows - 1];
                block(x + m * K, panels + n * K, bias ? bias + n : nullptr, out + m * N + n, K, N, N - n);
            }
        }
    }
}

}  // namespace

// Returns how many outputs a panel of float32 has; 0 where PyTorch's product is not to be replaced.
extern "C" int panel_width() { return __builtin_cpu_supports("fma") && __builtin_cpu_is("amd") ? WIDTH : 0; }

// x: [M, K]; panels: [ceil(N / width), K, width]; bias: [N] or null; out: [M, N].
extern "C" void multiply_float32(const void* x, const void* panels, const void* bias, void* out,
                                 const int64_t* sizes) {
    multiply((const float*)x, (const float*)panels, (const float*)bias, (float*)out, sizes[0], sizes[1], sizes[2],
             sizes[3]);
}

#else

extern "C" int panel_width() { return 0; }

#endif
