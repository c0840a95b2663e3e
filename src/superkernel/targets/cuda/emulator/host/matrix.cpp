// matrix.cpp: products of small matrices that are spread over the lanes of a warp, and their loads and stores.
//
// Sums of products run over k in rising order, each with one rounding: the GPU's tensor cores round otherwise.
#include <vector>

#include "machine.h"
#include "memory_place.h"
#include "numbers.h"

namespace ptx {

namespace {

// As in matrix_forms.py.
enum Element : uint32_t { kHalf, kBfloat, kTf32, kS8, kU8, kE4m3, kE5m2, kDouble };

double decode_e4m3(uint8_t bits) {
    if ((bits & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return bits & 0x80 ? -value : value;
}

// Element `part` of a register; elements of a register lie next to each other in a row of A, or a column of B.
double element(uint32_t kind, uint64_t bits, int part) {
    switch (kind) {
        case kHalf: return to_float(Half{uint16_t(bits >> 16 * part)});
        case kBfloat: return to_float(Bfloat{uint16_t(bits >> 16 * part)});
        case kTf32: return bits_as<float>(uint32_t(bits) & 0xFFFFE000);
        case kS8: return int8_t(bits >> 8 * part);
        case kU8: return uint8_t(bits >> 8 * part);
        case kE4m3: return decode_e4m3(uint8_t(bits >> 8 * part));
        case kE5m2: return decode(uint8_t(bits >> 8 * part), 5, 2);
        default: return bits_as<double>(bits);
    }
}

struct Product {
    uint32_t rows, k, a, b;        // shape, element types
    uint32_t accumulator;          // 0 f32, 1 f16, 2 s32, 3 f64
    bool saturates;
    explicit Product(uint32_t bits)
        : rows(bits & 31), k(bits >> 5 & 127), a(bits >> 12 & 15), b(bits >> 16 & 15), accumulator(bits >> 20 & 3), saturates(bits >> 22 & 1) {}
    int parts(uint32_t kind) const { return kind <= kBfloat ? 2 : kind == kTf32 || kind == kDouble ? 1 : 4; }
};

uint64_t raw(Warp& warp, bool wide, uint32_t offset, int lane) {
    return wide ? warp.lanes<uint64_t>(offset)[lane] : warp.lanes<uint32_t>(offset)[lane];
}

// Where element `i` of a fragment lies: lanes hold `parts` neighbours in each register; registers go down 8 rows first
// (A), then along k.
void multiply(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    if (!m.together(warp, mask, kAllLanes)) return;
    if (mask != kAllLanes) m.fail(warp, "mma needs a full warp");
    Product p(i.detail);
    bool wide = p.a == kDouble;
    int parts = p.parts(p.a), halves = int(p.rows) / 8, span = parts * 4, steps_k = int(p.k) / span;
    int registers_a = halves * steps_k, registers_b = steps_k;
    int registers_d = p.accumulator == 1 ? halves : 2 * halves;
    const uint32_t *d = i.operands, *a = d + registers_d, *b = a + registers_a, *c = b + registers_b;
    static thread_local double left[16][64], right[64][8], sum[16][8];
    for (int lane = 0; lane < kLanes; ++lane) {
        int group = lane >> 2, thread = lane & 3;
        for (int r = 0; r < registers_a; ++r) {
            uint64_t bits = raw(warp, wide, a[r], lane);
            for (int part = 0; part < parts; ++part) left[group + 8 * (r % halves)][thread * parts + part + span * (r / halves)] = element(p.a, bits, part);
        }
        for (int r = 0; r < registers_b; ++r) {
            uint64_t bits = raw(warp, wide, b[r], lane);
            for (int part = 0; part < parts; ++part) right[thread * parts + part + span * r][group] = element(p.b, bits, part);
        }
        for (int r = 0; r < 2 * halves; ++r) {
            double value;
            if (p.accumulator == 1) value = to_float(Half{uint16_t(warp.lanes<uint32_t>(c[r / 2])[lane] >> 16 * (r % 2))});
            else if (p.accumulator == 2) value = double(int32_t(warp.lanes<uint32_t>(c[r])[lane]));
            else value = wide ? bits_as<double>(warp.lanes<uint64_t>(c[r])[lane]) : double(bits_as<float>(warp.lanes<uint32_t>(c[r])[lane]));
            sum[group + 8 * (r / 2)][thread * 2 + r % 2] = value;
        }
    }
    for (uint32_t row = 0; row < p.rows; ++row) {
        for (uint32_t k = 0; k < p.k; ++k) {
            double x = left[row][k];
            for (int n = 0; n < 8; ++n) {
                if (p.accumulator <= 1) sum[row][n] = float(sum[row][n] + x * right[k][n]);
                else if (p.accumulator == 2) sum[row][n] += x * right[k][n];  // exact: below 2^53
                else sum[row][n] = std::fma(x, right[k][n], sum[row][n]);
            }
        }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        int group = lane >> 2, thread = lane & 3;
        for (int r = 0; r < 2 * halves; ++r) {
            double value = sum[group + 8 * (r / 2)][thread * 2 + r % 2];
            if (p.accumulator == 1) {
                uint32_t& word = warp.lanes<uint32_t>(d[r / 2])[lane];
                uint32_t bits = half_bits(float(value));
                word = r % 2 ? (word & 0xFFFF) | bits << 16 : (word & 0xFFFF0000) | bits;
            } else if (p.accumulator == 2) {
                int64_t whole = int64_t(value);
                if (p.saturates) whole = whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole;
                warp.lanes<uint32_t>(d[r])[lane] = uint32_t(uint64_t(whole));
            } else if (wide) {
                warp.lanes<uint64_t>(d[r])[lane] = bits_as<uint64_t>(value);
            } else {
                warp.lanes<uint32_t>(d[r])[lane] = bits_as<uint32_t>(float(value));
            }
        }
    }
}

// ldmatrix, stmatrix: registers, then the address; lanes 8 q to 8 q + 7 give the rows of matrix q. detail: 1 transposed,
// 2 stores, 4 the address has 64 bits
void move_matrices(Warp& warp, const Instruction& i, uint32_t mask) {
    Machine& m = *warp.machine;
    if (!m.together(warp, mask, kAllLanes)) return;
    bool transposed = i.detail & 1, stores = i.detail & 2, wide = i.detail & 4;
    int matrices = int(i.count) - 1;
    AccessRun run(warp, stores, 0, false);
    if (stores) ++m.shared->progress;
    for (int q = 0; q < matrices; ++q) {
        uint16_t values[8][8];
        uint8_t* rows[8];
        for (int row = 0; row < 8; ++row) {
            int lane = 8 * q + row;
            uint64_t address = raw(warp, wide, i.operands[matrices], lane) + i.immediate;
            Place place = locate(warp, i, wide ? Space::generic : Space::shared, wide && address < kWindow ? kSharedWindow + address : address, 16, lane, stores, 16);
            run.add(place, 16);
            rows[row] = place.host;
            std::memcpy(values[row], place.host, 16);
        }
        auto* r = warp.lanes<uint32_t>(i.operands[q]);
        for (int lane = 0; lane < kLanes; ++lane) {
            int row = lane / 4, column = lane % 4 * 2;
            for (int part = 0; part < 2; ++part) {
                uint16_t& value = transposed ? values[column + part][row] : values[row][column + part];
                if (stores) value = uint16_t(r[lane] >> 16 * part);
                else r[lane] = part ? r[lane] | uint32_t(value) << 16 : value;
            }
        }
        for (int row = 0; stores && row < 8; ++row) std::memcpy(rows[row], values[row], 16);
    }
    run.flush();
}

}  // namespace

void add_matrix(std::vector<HandlerEntry>& table) {
    table.insert(table.end(), {{"mma.sync", &multiply}, {"matrix", &move_matrices}});
}

}  // namespace ptx
