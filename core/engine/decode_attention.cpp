// Attention of one new token for each of N sequences, read from the pages of the KV cache where they lie.
//
// One thread computes all heads of a sequence, or one key head where there are fewer sequences than threads. A head is
// computed from beginning to end, so it is rounded alike whatever its neighbours are and however many threads there are.
// Built and called by core/engine/kernel.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bfloat16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bfloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline void store(float value, float* place) { *place = value; }

inline void store(float value, bfloat16* place) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    place->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}

// Returns `count` values in float32: where they lie, or copied to `place`.
inline const float* read_floats(const float* x, float*, int64_t) { return x; }

inline const float* read_floats(const bfloat16* x, float* place, int64_t count) {
    for (int64_t i = 0; i < count; i++) place[i] = to_float(x[i]);
    return place;
}

struct Shape {
    int64_t sequences, kv_heads, group, head_dim, table_width, page_size, threads;
};

// Calls function(s, x) for each of the first `length` tokens of a sequence, where x is what `cache` holds of it: [K, D].
// Pages do not follow one another in memory, so the machine has to be told to fetch the next one.
template <typename T, typename Function>
inline void for_each_token(const T* cache, const int32_t* pages, int64_t length, int64_t page_size, int64_t width,
                           Function function) {
    const int64_t step = 64 / sizeof(T);  // values of a cache line
    for (int64_t begin = 0; begin < length; begin += page_size) {
        const int64_t page = begin / page_size, end = std::min(begin + page_size, length);
        const T* x = cache + pages[page] * page_size * width;
        const T* next = end < length ? cache + pages[page + 1] * page_size * width : x;
        for (int64_t s = begin; s < end; s++, x += width, next += width) {
            for (int64_t i = 0; i < width; i += step) __builtin_prefetch(next + i);
            function(s, x);
        }
    }
}

// query, out: [N, K, group, D]; keys, values: [places, K, D]; table: N rows, table_width apart;
// lengths: [N].
// DIM is D where it is known to the compiler, or 0.
template <typename T, int DIM>
void attend(const T* query, const T* keys, const T* values, const int32_t* table, const int64_t* lengths, T* out,
            const Shape& shape, float scale) {
    const int64_t D = DIM ? DIM : shape.head_dim, G = shape.group, width = shape.kv_heads * D;
    const int64_t parts = shape.sequences < shape.threads ? shape.kv_heads : 1;
    const int64_t kv_heads = shape.kv_heads / parts, heads = kv_heads * G;  // of one part
#pragma omp parallel num_threads(shape.threads)
    {
        std::vector<float> scores, queries(heads * D), sums(heads * D), row(D);
#pragma omp for schedule(dynamic)
        for (int64_t part = 0; part < shape.sequences * parts; part++) {
            const int64_t n = part / parts, first_value = part % parts * kv_heads * D;
            const int64_t length = lengths[n];
            const int32_t* pages = table + n * shape.table_width;
            scores.resize(heads * length);
            for (int64_t i = 0; i < heads * D; i++) queries[i] = scale * to_float(query[part * heads * D + i]);
            for_each_token(keys, pages, length, shape.page_size, width, [&](int64_t s, const T* key) {
                key += first_value;
                for (int64_t k = 0; k < kv_heads; k++, key += D) {
                    const float* x = read_floats(key, row.data(), D);
                    for (int64_t h = k * G; h < (k + 1) * G; h++) {
                        const float* q = queries.data() + h * D;
                        float sum = 0;
                        for (int64_t d = 0; d < D; d++) sum += q[d] * x[d];
                        scores[h * length + s] = sum;
                    }
                }
            });
            for (int64_t h = 0; h < heads; h++) {
                float* score = scores.data() + h * length;
                float best = score[0], total = 0;
                for (int64_t s = 1; s < length; s++) best = std::max(best, score[s]);
                for (int64_t s = 0; s < length; s++) score[s] = std::exp(score[s] - best);
                for (int64_t s = 0; s < length; s++) total += score[s];
                for (int64_t s = 0; s < length; s++) score[s] /= total;
            }
            std::fill(sums.begin(), sums.end(), 0.0f);
            for_each_token(values, pages, length, shape.page_size, width, [&](int64_t s, const T* value) {
                value += first_value;
                for (int64_t k = 0; k < kv_heads; k++, value += D) {
                    const float* __restrict x = read_floats(value, row.data(), D);
                    for (int64_t h = k * G; h < (k + 1) * G; h++) {
                        const float share = scores[h * length + s];
                        float* __restrict sum = sums.data() + h * D;
                        for (int64_t d = 0; d < D; d++) sum[d] += share * x[d];
                    }
                }
            });
            for (int64_t i = 0; i < heads * D; i++) store(sums[i], out + part * heads * D + i);
        }
    }
}

template <typename T>
void attend(const void* query, const void* keys, const void* values, const int32_t* table, const int64_t* lengths,
            void* out, const int64_t* sizes, float scale) {
    const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
    auto run = [&](auto function) {
        function((const T*)query, (const T*)keys, (const T*)values, table, lengths, (T*)out, shape, scale);
    };
    switch (shape.head_dim) {
        case 32: return run(attend<T, 32>);
        case 64: return run(attend<T, 64>);
        case 128: return run(attend<T, 128>);
        default: return run(attend<T, 0>);
    }
}

}  // namespace

#define EXPORT(NAME, TYPE)                                                                                          \
    extern "C" void NAME(const void* query, const void* keys, const void* values, const int32_t* table,             \
                         const int64_t* lengths, void* out, const int64_t* sizes, float scale) {                    \
        attend<TYPE>(query, keys, values, table, lengths, out, sizes, scale);                                       \
    }

EXPORT(attend_float32, float)
EXPORT(attend_bfloat16, bfloat16)
