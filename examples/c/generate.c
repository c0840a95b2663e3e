/* generate.c: a language model from C: reads a prompt, then generates token after token, the most likely one each time.
 *
 *     ./generate llm.sk COUNT TOKEN...
 *
 * prefill(tokens [1, N], last []) -> logits [1, vocabulary]: one shape per N; the prompt is padded to the next one
 * decode(token [1, 1], position []) -> logits [1, vocabulary]
 * The key and value caches are states of the context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <superkernel/model.h>

static int fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, sk_last_error());
    return 1;
}

static const sk_entry_info* find_entry(sk_model* model, const char* name) {
    const sk_entry_info* entry = NULL;
    int32_t index = 0;
    if (sk_entry_index(model, name, &index) != SK_OK || sk_model_entry(model, index, &entry) != SK_OK) return NULL;
    return entry;
}

static int64_t most_likely(const float* logits, int64_t count) {
    int64_t best = 0, i;
    for (i = 1; i < count; ++i) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* The smallest shape of the entry with room for the prompt. */
static const sk_shape_info* choose_shape(const sk_entry_info* prefill, int64_t prompt) {
    const sk_shape_info* best = NULL;
    int32_t i;
    for (i = 0; i < prefill->shape_count; ++i) {
        const sk_shape_info* shape = &prefill->shapes[i];
        const int64_t room = shape->inputs[0].shape[1];
        if (room >= prompt && (best == NULL || room < best->inputs[0].shape[1])) best = shape;
    }
    return best;
}

static sk_tensor tensor(void* data, const sk_tensor_info* info) {
    sk_tensor made;
    made.data = data;
    made.dtype = info->dtype;
    made.rank = info->rank;
    made.shape = info->shape;
    return made;
}

static int generate(sk_model* model, sk_context* context, const int64_t* prompt, int64_t length, int64_t count) {
    const sk_entry_info *prefill = find_entry(model, "prefill"), *decode;
    const sk_shape_info *first, *next;
    sk_tensor inputs[2], output;
    int64_t *tokens, position = length - 1, token, vocabulary;
    float* logits;
    if (prefill == NULL || (decode = find_entry(model, "decode")) == NULL) return fail("entries");
    first = choose_shape(prefill, length);
    next = &decode->shapes[0];
    if (first == NULL) {
        fprintf(stderr, "the prompt is longer than every prefill shape of the package\n");
        return 1;
    }
    vocabulary = next->outputs[0].shape[1];
    tokens = calloc((size_t)first->inputs[0].shape[1], sizeof *tokens);
    logits = malloc((size_t)vocabulary * sizeof *logits);
    if (tokens == NULL || logits == NULL) return 1;
    memcpy(tokens, prompt, (size_t)length * sizeof *tokens);
    inputs[0] = tensor(tokens, &first->inputs[0]);
    inputs[1] = tensor(&position, &first->inputs[1]);
    output = tensor(logits, &first->outputs[0]);
    if (sk_run(context, "prefill", inputs, &output) != SK_OK) return fail("prefill");
    token = most_likely(logits, vocabulary);
    printf("%lld", (long long)token);
    for (position = length; position < length + count - 1; ++position) {
        inputs[0] = tensor(&token, &next->inputs[0]);
        inputs[1] = tensor(&position, &next->inputs[1]);
        output = tensor(logits, &next->outputs[0]);
        if (sk_run(context, "decode", inputs, &output) != SK_OK) return fail("decode");
        token = most_likely(logits, vocabulary);
        printf(" %lld", (long long)token);
    }
    printf("\n");
    free(tokens);
    free(logits);
    return 0;
}

int main(int count, char** words) {
    sk_model* model = NULL;
    sk_context* context = NULL;
    int64_t* prompt;
    int i, status;
    if (count < 4) {
        fprintf(stderr, "usage: %s PACKAGE COUNT TOKEN...\n", words[0]);
        return 2;
    }
    prompt = malloc((size_t)count * sizeof *prompt);
    if (prompt == NULL) return 1;
    for (i = 3; i < count; ++i) prompt[i - 3] = atoll(words[i]);
    if (sk_model_open(words[1], &model) != SK_OK) return fail("sk_model_open");
    if (sk_context_create(model, NULL, &context) != SK_OK) return fail("sk_context_create");
    status = generate(model, context, prompt, count - 3, atoi(words[2]));
    free(prompt);
    sk_context_destroy(context);
    sk_model_close(model);
    return status;
}
