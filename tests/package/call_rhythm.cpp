// Intervals between calls in ns, as arguments -> a line for each call: in how many ns the next one is expected; 0: none is.
#include "call_rhythm.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char** arguments) {
    sk::model::CallRhythm rhythm;
    uint64_t now = 5'000'000'000;
    for (int i = 1; i < count; ++i) {
        now += strtoull(arguments[i], nullptr, 10);
        const uint64_t next = rhythm.called(now);
        printf("%llu\n", (unsigned long long)(next == 0 ? 0 : next - now));
    }
}
