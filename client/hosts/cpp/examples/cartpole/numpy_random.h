#pragma once

#include <cstdint>

/// The random numbers of `numpy.random.Generator(PCG64(SeedSequence(seed)))`, which gymnasium's environments draw.
class NumpyRandom {
 public:
  /// Begin the sequence of a seed.
  explicit NumpyRandom(std::uint64_t seed);

  /// Return the next number of `uniform(low, high)`.
  double uniform(double low, double high);

 private:
  __extension__ typedef unsigned __int128 Uint128;

  void advance();

  Uint128 state_ = 0, increment_ = 0;
};
