#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "model/model_test_util.h"
#include "support/sanitizers.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Reads a file without the code under test.
std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t entries_of(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), {}));
}

template <class F>
std::string failure_of(F f) {
  try {
    f();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Failure was thrown";
  return "";
}

TEST(AtomicWrite, ReplacesTheContentAndLeavesNothingElse) {
  const TemporaryDirectory directory;
  const std::string binary("a\0b\r\n\xFF", 6);
  for (const std::string& content :
       {std::string("first"), std::string(), binary, std::string(1 << 20, 'x')}) {
    write_file_atomically(directory / "file", content);
    EXPECT_EQ(content_of(directory / "file"), content);
    EXPECT_EQ(read_text_file(directory / "file"), content);
    EXPECT_EQ(entries_of(directory.path()), 1u);
  }
}

TEST(AtomicWrite, AReaderKeepsTheOldContent) {
  const TemporaryDirectory directory;
  directory.write("file", "old");
  const MappedFile reader(directory / "file");
  write_file_atomically(directory / "file", "new content");
  EXPECT_EQ(std::memcmp(reader.bytes().data(), "old", 3), 0);
  EXPECT_EQ(reader.bytes().size(), 3u);
  EXPECT_EQ(content_of(directory / "file"), "new content");
}

// The temporary file is a link to /dev/full, so that writes fail.
TEST(AtomicWrite, AFullDiskKeepsTheOldContent) {
  const TemporaryDirectory directory;
  directory.write("file", "old");
  fs::create_symlink("/dev/full", directory / "file.tmp");
  const std::string message = failure_of([&] { write_file_atomically(directory / "file", "new"); });
  EXPECT_THAT(message, AllOf(HasSubstr((directory / "file").string()), HasSubstr("No space left")));
  EXPECT_EQ(content_of(directory / "file"), "old");
  EXPECT_EQ(entries_of(directory.path()), 1u) << "the temporary file stays behind";
}

TEST(AtomicWrite, ATargetThatCannotBeReplaced) {
  const TemporaryDirectory directory;
  fs::create_directories(directory / "target" / "child");
  EXPECT_THAT(failure_of([&] { write_file_atomically(directory / "target", "new"); }),
              HasSubstr((directory / "target").string()));
  EXPECT_TRUE(fs::exists(directory / "target" / "child"));
  EXPECT_EQ(entries_of(directory.path()), 1u);

  EXPECT_THAT(
      failure_of([&] { write_file_atomically(directory / "missing" / "file", "new"); }),
      AllOf(HasSubstr((directory / "missing" / "file").string()), HasSubstr("No such file")));
  EXPECT_FALSE(fs::exists(directory / "missing"));
}

TEST(MappedFiles, MapsBytes) {
  const TemporaryDirectory directory;
  const std::string content("one\0two", 7);
  const MappedFile file(directory.write("file", content));
  ASSERT_EQ(file.bytes().size(), content.size());
  EXPECT_EQ(std::memcmp(file.bytes().data(), content.data(), content.size()), 0);
}

TEST(MappedFiles, AnEmptyFileIsAnEmptySpan) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("empty", "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  EXPECT_EQ(read_text_file(path), "");
}

TEST(MappedFiles, MissingFilesAndDirectoriesAreTheUsersToMend) {
  const TemporaryDirectory directory;
  const fs::path missing = directory / "missing";
  EXPECT_THAT(user_error_of([&] { MappedFile file(missing); }),
              AllOf(HasSubstr(missing.string()), HasSubstr("No such file")));
  EXPECT_THAT(user_error_of([&] { read_text_file(missing); }), HasSubstr(missing.string()));
  EXPECT_THAT(user_error_of([&] { MappedFile file(directory.path()); }),
              AllOf(HasSubstr(directory.path().string()), HasSubstr("is a directory")));
}

// Reads from the page cache or with O_DIRECT, depending on the file system.
TEST(FileReaders, ReadAnyRange) {
  const TemporaryDirectory directory;
  std::string content(300'001, '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * i / 7);
  const std::string path = directory.write("file", content);
  for (const bool cached : {true, false}) {
    if (!cached) {
      const int descriptor = ::open(path.c_str(), O_RDONLY);
      ::fsync(descriptor);
      ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
      ::close(descriptor);
    }
    const FileReader file(path);
    EXPECT_EQ(file.size(), content.size());
    for (const std::size_t offset : {0, 1, 4095, 4096, 8191, 123'457, 299'000, 300'000})
      for (const std::size_t requested : {1, 7, 4096, 100'000}) {
        const std::size_t bytes = std::min(requested, content.size() - offset);
        std::vector<std::byte> memory(bytes + FileReader::kSlack + FileReader::kPage);
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        std::byte* const buffer =
            memory.data() + (FileReader::kPage - address % FileReader::kPage) % FileReader::kPage;
        const auto* read = reinterpret_cast<const char*>(file.read(offset, bytes, buffer));
        EXPECT_TRUE(std::string_view(read, bytes) ==
                    std::string_view(content).substr(offset, bytes))
            << bytes << " from " << offset << (cached ? "" : ", not cached");
      }
  }
}

TEST(FileReaders, AFileThatIsShortenedMeanwhileIsAFailure) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", std::string(100'000, 'x'));
  const FileReader file(path);
  fs::resize_file(path, 5000);
  std::vector<std::byte> memory(100'000 + 3 * FileReader::kPage);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* const buffer =
      memory.data() + (FileReader::kPage - address % FileReader::kPage) % FileReader::kPage;
  EXPECT_NO_THROW(file.read(0, 5000, buffer));
  EXPECT_THAT(failure_of([&] { file.read(4000, 2000, buffer); }),
              AllOf(HasSubstr(path), HasSubstr("was truncated while it was read"),
                    HasSubstr("had 100000 bytes, byte 5000 is missing")));
}

// Without the guard, SIGBUS would end the process.
TEST(MappedFiles, AFileThatIsShortenedMeanwhileIsAFailure) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", std::string(100'000, 'x'));
  const MappedFile other(directory.write("other", std::string(100'000, 'y')));
  const MappedFile file(path);
  EXPECT_NO_THROW(file.check_intact());
  fs::resize_file(path, 5000);  // in the second page
  EXPECT_EQ(static_cast<char>(file.bytes()[4999]), 'x');
  EXPECT_NO_THROW(file.check_intact());
  const std::string copy(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  EXPECT_EQ(copy.substr(0, 5000), std::string(5000, 'x'));
  EXPECT_EQ(copy.substr(5000), std::string(95'000, '\0'));
  EXPECT_THAT(failure_of([&] { file.check_intact(); }),
              AllOf(HasSubstr(path), HasSubstr("was truncated while it was read"),
                    HasSubstr("had 100000 bytes, now it has 5000")));
  EXPECT_EQ(static_cast<char>(other.bytes()[99'999]), 'y');
  EXPECT_NO_THROW(other.check_intact()) << "each file by itself";
}

// A SIGBUS outside our mappings keeps its default action.
TEST(MappedFiles, ABusErrorElsewhereEndsTheProcess) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "sanitizers report SIGBUS themselves";
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", std::string(100'000, 'x'));
  EXPECT_EXIT(
      {
        { const MappedFile gone(path); }
        const MappedFile ours(path);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFiles, APipeIsRefusedWithoutWaitingForIt) {
  const TemporaryDirectory directory;
  const std::string path = (directory / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(user_error_of([&] { MappedFile file(path); }),
              HasSubstr("pipe is a pipe, a file is needed"));
  EXPECT_THAT(user_error_of([&] { MappedFile file("/dev/zero"); }), HasSubstr("is a device"));
}

TEST(MappedFiles, MovesKeepTheMap) {
  const TemporaryDirectory directory;
  MappedFile first(directory.write("a", "aaaa")), second(directory.write("b", "bb"));
  const std::byte* address = first.bytes().data();
  MappedFile moved(std::move(first));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: tests the moved-from file
  second = std::move(moved);
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_EQ(second.bytes().size(), 4u);
}

TEST(FileWriters, WritesFrontToBackAndReplaces) {
  const TemporaryDirectory directory;
  directory.write("file", "something longer that was there before");
  FileWriter writer(directory / "file");
  writer.write("abc", 3);
  writer.write("", 0);
  writer.write("de", 2);
  writer.close();
  EXPECT_EQ(content_of(directory / "file"), "abcde");
}

TEST(FileWriters, AWriteThatDoesNotSucceedIsAFailure) {
  FileWriter full("/dev/full");
  EXPECT_THAT(failure_of([&] { full.write("x", 1); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
  const TemporaryDirectory directory;
  EXPECT_THAT(failure_of([&] { FileWriter writer(directory / "missing" / "file"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(failure_of([&] { FileWriter writer(directory.path()); }),
              HasSubstr(directory.path().string()));
}

TEST(SyncDirectory, NamesWhatItCannotSync) {
  const TemporaryDirectory directory;
  EXPECT_NO_THROW(sync_directory(directory.path()));
  EXPECT_THAT(failure_of([&] { sync_directory(directory / "missing"); }),
              HasSubstr((directory / "missing").string()));
}

}  // namespace
}  // namespace kintsugi
