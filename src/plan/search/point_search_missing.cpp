// Replaces point_search_dlib.cpp in a binary built without dlib.
#include "core/error.h"
#include "plan/search/point_search.h"

namespace kintsugi {

struct PointSearch::State {};

bool built_with_dlib() { return false; }

PointSearch::PointSearch(const std::vector<int>&, const std::vector<std::pair<Point, double>>&) {
  user_error(
      "this binary was built without dlib, which kintsugi plan tune needs: build it where dlib "
      "(Debian: "
      "libdlib-dev) is installed");
}
PointSearch::~PointSearch() = default;

PointSearch::Question PointSearch::ask() { return {}; }
void PointSearch::answer(std::uint64_t, double) {}

}  // namespace kintsugi
