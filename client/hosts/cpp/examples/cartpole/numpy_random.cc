#include "numpy_random.h"

#include <array>

namespace {

/// numpy's SeedSequence: O'Neill's `seed_seq` with a pool of four words.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed) {
    const std::array<std::uint32_t, 4> entropy{static_cast<std::uint32_t>(seed),
                                               static_cast<std::uint32_t>(seed >> 32)};
    for (std::size_t i = 0; i < 4; ++i) pool_[i] = hash(entropy[i]);
    for (std::size_t from = 0; from < 4; ++from) {
      for (std::size_t to = 0; to < 4; ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
      }
    }
  }

  /// Return `generate_state(4, uint64)`.
  std::array<std::uint64_t, 4> state() const {
    std::array<std::uint64_t, 4> state{};
    std::uint32_t factor = 0x8b51f9dd;
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint32_t word = pool_[i % 4] ^ factor;
      factor *= 0x58f38ded;
      word *= factor;
      word ^= word >> 16;
      state[i / 2] |= std::uint64_t{word} << 32 * (i % 2);
    }
    return state;
  }

 private:
  std::uint32_t hash(std::uint32_t word) {
    word ^= factor_;
    factor_ *= 0x931e8875;
    word *= factor_;
    return word ^ word >> 16;
  }

  static std::uint32_t mix(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t mixed = 0xca01f9dd * a - 0x4973f715 * b;
    return mixed ^ mixed >> 16;
  }

  std::array<std::uint32_t, 4> pool_{};
  std::uint32_t factor_ = 0x43b0d7e5;
};

}  // namespace

NumpyRandom::NumpyRandom(std::uint64_t seed) {
  const auto words = SeedSequence(seed).state();
  increment_ = (Uint128{words[2]} << 64 | words[3]) << 1 | 1;
  advance();
  state_ += Uint128{words[0]} << 64 | words[1];
  advance();
}

double NumpyRandom::uniform(double low, double high) {
  advance();
  const auto mixed = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  const auto turns = static_cast<unsigned>(state_ >> 122);
  const std::uint64_t bits = mixed >> turns | mixed << (-turns & 63);
  return low + (high - low) * (static_cast<double>(bits >> 11) * 0x1p-53);
}

void NumpyRandom::advance() { state_ = state_ * (Uint128{0x2360ed051fc65da4} << 64 | 0x4385df649fccf645) + increment_; }
