#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "data/corpora/parquet_reader.h"
#include "support/paths.h"

namespace kintsugi {

// Where scripts/install_packages.sh puts it, unless the environment names another one.
inline void name_duckdb() {
  const std::filesystem::path own =
      std::filesystem::path(kintsugi_binary()).parent_path() / "duckdb/libduckdb.so";
  if (std::filesystem::exists(own)) ::setenv(kDuckdbVariable, own.c_str(), 0);
}

// Parquet written by DuckDB itself, through another part of its interface than ours.
inline void execute_in_duckdb(const std::string& sql) {
  struct Result {
    unsigned long long numbers[3];
    void* pointers[3];
  };
  const char* const path = std::getenv(kDuckdbVariable);
  void* const library =
      ::dlopen(path != nullptr ? path : "libduckdb.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const auto find = [&](const char* name) { return ::dlsym(library, name); };
  void *database = nullptr, *connection = nullptr;
  Result result{};
  reinterpret_cast<int (*)(const char*, void**)>(find("duckdb_open"))(nullptr, &database);
  reinterpret_cast<int (*)(void*, void**)>(find("duckdb_connect"))(database, &connection);
  const int code = reinterpret_cast<int (*)(void*, const char*, Result*)>(find("duckdb_query"))(
      connection, sql.c_str(), &result);
  const char* const error =
      reinterpret_cast<const char* (*)(Result*)>(find("duckdb_result_error"))(&result);
  const std::string why = code != 0 && error != nullptr ? error : "";
  reinterpret_cast<void (*)(Result*)>(find("duckdb_destroy_result"))(&result);
  reinterpret_cast<void (*)(void**)>(find("duckdb_disconnect"))(&connection);
  reinterpret_cast<void (*)(void**)>(find("duckdb_close"))(&database);
  if (code != 0) throw std::runtime_error(why);
}

}  // namespace kintsugi

// Where DuckDB's library is missing, the test is skipped.
#define KINTSUGI_NEEDS_DUCKDB()                                                    \
  ::kintsugi::name_duckdb();                                                       \
  if (const std::string problem = ::kintsugi::parquet_problem(); !problem.empty()) \
  GTEST_SKIP() << "no Parquet: " << problem
