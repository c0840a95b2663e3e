// sha256.cpp: SHA-256 (FIPS 180-4), with the instructions of the processor where it has them.
#include "sha256.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace sk::model {
namespace {

alignas(64) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

uint32_t big_endian(const uint8_t* bytes) {
    return uint32_t(bytes[0]) << 24 | uint32_t(bytes[1]) << 16 | uint32_t(bytes[2]) << 8 | bytes[3];
}

}  // namespace

__attribute__((optimize("O3"))) void sha256_blocks_plain(uint32_t state[8], const uint8_t* data, size_t blocks) {
    for (; blocks > 0; --blocks, data += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
        for (int i = 16; i < 64; ++i) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            const uint32_t s0 = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3, s1 = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        uint32_t v[8];
        memcpy(v, state, sizeof v);
        for (int i = 0; i < 64; ++i) {
            const uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
            const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
            const uint32_t t1 = v[7] + s1 + choice + kRound[i] + w[i];
            const uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
            const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            memmove(v + 1, v, 7 * sizeof *v);
            v[4] += t1;
            v[0] = t1 + s0 + majority;
        }
        for (int i = 0; i < 8; ++i) state[i] += v[i];
    }
}

#if defined(__x86_64__)

static bool has_sha_instructions() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b >> 29 & 1) == 0) return false;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 19 & 1) != 0 && (c >> 9 & 1) != 0;  // SSE4.1 and SSSE3
}

__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_by_instructions(uint32_t state[8], const uint8_t* data,
                                                                               size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    // the instructions keep the words as (a, b, e, f) and (c, d, g, h), the first in the highest lane
    __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
    __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
    abcd = _mm_shuffle_epi32(abcd, 0xB1);  // b, a, d, c
    efgh = _mm_shuffle_epi32(efgh, 0x1B);  // h, g, f, e
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, abcd, 0xF0);
    for (; blocks > 0; --blocks, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 4; ++i) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
        }
        for (int i = 0; i < 16; ++i) {
            if (i >= 4) {
                __m128i& oldest = w[i & 3];
                const __m128i middle = _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4);
                oldest = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, w[(i + 1) & 3]), middle);
                oldest = _mm_sha256msg2_epu32(oldest, w[(i + 3) & 3]);
            }
            const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i));
            const __m128i words = _mm_add_epi32(w[i & 3], k);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static const bool instructions_are_there = has_sha_instructions();

bool sha256_blocks_fast(uint32_t state[8], const uint8_t* data, size_t blocks) {
    if (instructions_are_there) blocks_by_instructions(state, data, blocks);
    return instructions_are_there;
}

#else

bool sha256_blocks_fast(uint32_t*, const uint8_t*, size_t) { return false; }

#endif

std::string sha256(const void* data, size_t bytes) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto add = [&state](const uint8_t* from, size_t blocks) {
        if (!sha256_blocks_fast(state, from, blocks)) sha256_blocks_plain(state, from, blocks);
    };
    const auto* first = static_cast<const uint8_t*>(data);
    const size_t whole = bytes / 64, rest = bytes % 64;
    if (whole > 0) add(first, whole);
    uint8_t tail[128] = {};
    if (rest > 0) memcpy(tail, first + 64 * whole, rest);
    tail[rest] = 0x80;
    const size_t tail_blocks = rest < 56 ? 1 : 2;
    for (int i = 0; i < 8; ++i) tail[64 * tail_blocks - 1 - size_t(i)] = uint8_t(uint64_t(bytes) * 8 >> 8 * i);
    add(tail, tail_blocks);
    std::string digits;
    for (const uint32_t word : state) {
        for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
    }
    return digits;
}

}  // namespace sk::model
