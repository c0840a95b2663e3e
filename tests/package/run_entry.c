/* run_entry PACKAGE ENTRY INPUTS OUTPUTS: runs an entry of one shape on the bytes of a file; its outputs become a file.
 *
 * Both files hold the tensors one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <superkernel/model.h>

static int failed(const char* what) {
    fprintf(stderr, "%s: %s\n", what, sk_last_error());
    return 1;
}

static sk_tensor* with_memory(const sk_tensor_info* infos, int32_t count) {
    sk_tensor* tensors = calloc((size_t)count + 1, sizeof *tensors);
    for (int32_t i = 0; i < count; ++i) {
        tensors[i].data = calloc(infos[i].bytes + 1, 1);
        tensors[i].dtype = infos[i].dtype;
        tensors[i].rank = infos[i].rank;
        tensors[i].shape = infos[i].shape;
    }
    return tensors;
}

int main(int count, char** words) {
    sk_model* model;
    sk_context* context;
    sk_model_info found;
    int32_t index;
    const sk_entry_info* entry;
    if (count != 5) return 2;
    if (sk_package_verify(words[1])) return failed("verify");
    if (sk_model_open(words[1], &model) || sk_model_describe(model, &found)) return failed("open");
    if (sk_entry_index(model, words[2], &index) || sk_model_entry(model, index, &entry)) return failed("entry");
    if (sk_context_create(model, NULL, &context)) return failed("context");
    const sk_shape_info* shape = entry->shapes;
    sk_tensor* inputs = with_memory(shape->inputs, shape->input_count);
    sk_tensor* outputs = with_memory(shape->outputs, shape->output_count);
    FILE* file = fopen(words[3], "rb");
    for (int32_t i = 0; i < shape->input_count; ++i) {
        if (file == NULL || fread(inputs[i].data, 1, shape->inputs[i].bytes, file) != shape->inputs[i].bytes) return 3;
    }
    fclose(file);
    if (sk_run(context, words[2], inputs, outputs)) return failed("run");
    file = fopen(words[4], "wb");
    for (int32_t i = 0; i < shape->output_count; ++i) {
        if (file == NULL || fwrite(outputs[i].data, 1, shape->outputs[i].bytes, file) != shape->outputs[i].bytes) return 4;
    }
    if (fclose(file)) return 4;
    printf("%s\n", found.instruction_set);
    if (sk_context_destroy(context) || sk_model_close(model)) return failed("close");
    return 0;
}
