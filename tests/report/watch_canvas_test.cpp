#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/watch/canvas.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(WatchCanvas, CutsTextAtItsEnd) {
  Canvas canvas(10, 2);
  EXPECT_EQ(canvas.text(0, 0, 4, "abcdef"), 4);
  EXPECT_EQ(canvas.text(0, 5, 99, "uvwxyz"), 10);
  canvas.text(1, 2, 10, "xy");
  EXPECT_THAT(canvas.lines(false), ElementsAre("abcd uvwxy", "  xy"));
}

TEST(WatchCanvas, NothingIsDrawnOutside) {
  Canvas canvas(3, 1);
  canvas.put(-1, 0, U'x');
  canvas.put(0, 3, U'x');
  canvas.put(1, 0, U'x');
  canvas.text(0, -2, 3, "abc");
  EXPECT_THAT(canvas.lines(false), ElementsAre("c"));
  EXPECT_TRUE(Canvas(-5, -5).lines(true).empty());
}

TEST(WatchCanvas, WideCharactersTakeTwoCells) {
  EXPECT_EQ(display_width("損失 1"), 6);
  Canvas canvas(5, 1);
  EXPECT_EQ(canvas.text(0, 0, 3, "損失"), 2);  // the second one has only one cell left
  canvas.text(0, 3, 5, "ab");
  EXPECT_THAT(canvas.lines(false), ElementsAre("損 ab"));
}

TEST(WatchCanvas, HostileTextStaysInItsCells) {
  const std::string hostile = "a\x1b[2J\nb\tc\xE2\x80\xAEold\xCC\x81\xFFz";
  Canvas canvas(40, 1);
  canvas.text(0, 0, 40, hostile);
  EXPECT_THAT(canvas.lines(false), ElementsAre("a\\x1b[2J b cold\\xffz"));
  EXPECT_EQ(display_width(hostile), 20);
}

TEST(WatchCanvas, ColoursEndWithTheLine) {
  Canvas canvas(6, 1);
  canvas.text(0, 0, 2, "ab", CellStyle::Bad);
  canvas.text(0, 2, 4, "cd");
  canvas.text(0, 4, 6, "ef", CellStyle::Good);
  EXPECT_THAT(canvas.lines(true), ElementsAre("\x1b[0;31mab\x1b[0mcd\x1b[0;32mef\x1b[0m"));
  EXPECT_THAT(canvas.lines(false)[0], Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace kintsugi
