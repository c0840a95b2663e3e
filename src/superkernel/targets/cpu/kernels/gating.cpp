// gating.cpp: the k best experts of every token, in the best groups. Blocks divide the tokens.
//
// Norms and weights are computed in double, as the operator's reference does, so that both choose the same experts.
#include "double_exp.h"
#include "quant_elements.h"
#include "problem.h"

namespace {

constexpr int64_t kMostExperts = 2048;

struct Gating {
    const void *x, *bias;
    DType x_dtype, bias_dtype;
    int64_t x_row, x_column, bias_step;
    void* y;
    int32_t* expert;
    float* norm;
    int64_t tokens, experts, k, k_group, group_count;
    bool best_two, sigmoid, norm_wanted;
    double factor, eps;
};

struct GatingScratch {
    alignas(64) double wide[kMostExperts];
    alignas(64) float norm[kMostExperts];
    alignas(64) float choice[kMostExperts];
    alignas(64) float bias[kMostExperts];
    alignas(64) float score[kMostExperts];
    int32_t order[kMostExperts];
    bool chosen[kMostExperts];
};

// NaN comes before all.
SK_INLINE bool before(float x, float y) { return x > y || (x != x && y == y); }

// The numbers of the `wanted` best, in order; of equal ones the first comes first.
SK_NOINLINE void best_of(const float* values, int64_t count, int64_t wanted, int32_t* order) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (found == wanted && !before(values[i], values[order[wanted - 1]])) continue;
        int64_t at = found < wanted ? found++ : wanted - 1;
        for (; at > 0 && before(values[i], values[order[at - 1]]); --at) order[at] = order[at - 1];
        order[at] = int32_t(i);
    }
}

SK_NOINLINE void norms(const Gating& p, int64_t token, GatingScratch& scratch) {
    double* wide = scratch.wide;
    read_doubles(p.x_dtype, p.x, token * p.x_row, p.x_column, p.experts, wide);
    for (int64_t i = p.experts; i % kDoubles != 0; ++i) wide[i] = 0;  // computed, too
    if (p.sigmoid) {
        for (int64_t i = 0; i < p.experts; i += kDoubles)
            store_doubles(wide + i, 1.0 / (1.0 + exp(-load_doubles(wide + i))));
    } else {
        double largest = -__builtin_inf(), total = 0;
        for (int64_t i = 0; i < p.experts; ++i) largest = wide[i] > largest ? wide[i] : largest;
        for (int64_t i = 0; i < p.experts; i += kDoubles)
            store_doubles(wide + i, exp(load_doubles(wide + i) - largest));
        for (int64_t i = 0; i < p.experts; ++i) total += wide[i];
        for (int64_t i = 0; i < p.experts; ++i) wide[i] /= total;
    }
    for (int64_t i = 0; i < p.experts; ++i) scratch.norm[i] = float(wide[i]);
}

// Experts outside of the best groups become the worst.
SK_NOINLINE void leave_groups_out(const Gating& p, GatingScratch& scratch) {
    const int64_t each = p.experts / p.group_count;
    for (int64_t group = 0; group < p.group_count; ++group) {
        int32_t best[2];
        const float* choice = scratch.choice + group * each;
        best_of(choice, each, p.best_two ? 2 : 1, best);
        scratch.score[group] = p.best_two ? choice[best[0]] + choice[best[1]] : choice[best[0]];
        scratch.chosen[group] = false;
    }
    best_of(scratch.score, p.group_count, p.k_group, scratch.order);
    for (int64_t i = 0; i < p.k_group; ++i) scratch.chosen[scratch.order[i]] = true;
    for (int64_t group = 0; group < p.group_count; ++group)
        if (!scratch.chosen[group])
            for (int64_t i = 0; i < each; ++i) scratch.choice[group * each + i] = -__builtin_inff();
}

SK_NOINLINE void choose_experts(const Gating& p, int64_t token, GatingScratch& scratch) {
    norms(p, token, scratch);
    for (int64_t i = 0; i < p.experts; ++i) scratch.choice[i] = scratch.norm[i] + scratch.bias[i];
    if (p.group_count > 1) leave_groups_out(p, scratch);
    best_of(scratch.choice, p.experts, p.k, scratch.order);
    double total = 0;
    for (int64_t i = 0; i < p.k; ++i) total += scratch.norm[scratch.order[i]];
    for (int64_t i = 0; i < p.k; ++i) {
        scratch.score[i] = float(scratch.norm[scratch.order[i]] / (total + p.eps) * p.factor);
        p.expert[token * p.k + i] = scratch.order[i];
    }
    write_floats(p.x_dtype, scratch.score, p.k, p.y, token * p.k);
    for (int64_t i = 0; i < p.experts; ++i) p.norm[token * p.experts + i] = p.norm_wanted ? scratch.norm[i] : 0;
}

}  // namespace

extern "C" void gating(const void* x, DType x_dtype, int64_t x_row, int64_t x_column, const void* bias,
                       DType bias_dtype, int64_t bias_step, void* y, int32_t* expert, float* norm, int64_t tokens,
                       int64_t experts, int64_t k, int64_t k_group, int64_t group_count, int64_t best_two,
                       int64_t sigmoid, int64_t norm_wanted, double factor, double eps) {
    const Gating p{x,       bias,    x_dtype, bias_dtype,  x_row,         x_column,     bias_step,
                   y,       expert,  norm,      tokens,        experts,       k,            k_group,
                   group_count, best_two != 0, sigmoid != 0, norm_wanted != 0, factor, eps};
    GatingScratch scratch;
    if (bias_dtype != DType::kNone)
        read_floats(bias_dtype, bias, 0, bias_step, experts, scratch.bias);
    else
        for (int64_t i = 0; i < experts; ++i) scratch.bias[i] = 0;
    const Range share_of_tokens = block_share(tokens);
    for (int64_t token = share_of_tokens.begin; token < share_of_tokens.end; ++token) choose_experts(p, token, scratch);
}
