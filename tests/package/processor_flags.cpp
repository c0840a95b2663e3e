// "FILE" in the place of /proc/cpuinfo -> the flags of this processor, one on a line.
#include "processor_flags.h"

#include <stdio.h>

int main(int, char** arguments) {
    for (const std::string& flag : sk::model::processor_flags(arguments[1])) puts(flag.c_str());
}
