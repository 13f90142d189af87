// Compiled for the oldest processor of its kind: a processor without the instructions of the
// baseline (CMakeLists.txt) is reported before any of them runs.
#include <unistd.h>

#include <string_view>

namespace {

#if defined(__x86_64__) && defined(KINTSUGI_NEEDS_AVX2)
__attribute__((constructor(101))) void check_processor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
    return;
  constexpr std::string_view text =
      "kintsugi: this binary is compiled for x86-64-v3 (AVX2, FMA), which this processor lacks: "
      "configure with -DKINTSUGI_MARCH=x86-64-v2\n";
  [[maybe_unused]] const auto written = ::write(2, text.data(), text.size());
  ::_exit(1);
}
#endif

}  // namespace
