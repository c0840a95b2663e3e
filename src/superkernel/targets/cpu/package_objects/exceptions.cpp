// exceptions.cpp: an exception of a kernel is caught by the C++ library that threw it.
//
// It becomes part of every object of a package that uses the C++ library of the process. libsuperkernel has one of its
// own inside: if that caught the exception, std::uncaught_exceptions() of the process would count it for ever.
#define SK_EXPORT extern "C" __attribute__((visibility("default")))

SK_EXPORT bool sk_enter(void (*entry)(void* launch, int part), void* launch, int part) {
    try {
        entry(launch, part);
        return true;
    } catch (...) {  // of a kernel that found no memory, for example
        return false;
    }
}
