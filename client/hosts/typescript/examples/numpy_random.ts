/**
 * The random numbers of `numpy.random.Generator(PCG64(SeedSequence(seed)))`, which gymnasium's environments draw.
 *
 * @packageDocumentation
 */

const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** A sequence of random numbers. */
export class NumpyRandom {
  #state = 0n;
  readonly #increment: bigint;

  /** Begin the sequence of a seed of 64 bits. */
  constructor(seed: bigint) {
    const [a, b, c, d] = generateState(seed) as [bigint, bigint, bigint, bigint];
    this.#increment = BigInt.asUintN(128, (((c << 64n) | d) << 1n) | 1n);
    this.#advance();
    this.#state += (a << 64n) | b;
    this.#advance();
  }

  /** Return the next number of `uniform(low, high)`. */
  uniform(low: number, high: number): number {
    this.#advance();
    const mixed = BigInt.asUintN(64, this.#state ^ (this.#state >> 64n));
    const turned = BigInt.asUintN(64, ((mixed << 64n) | mixed) >> (this.#state >> 122n));
    return low + (high - low) * (Number(turned >> 11n) / 2 ** 53);
  }

  #advance(): void {
    this.#state = BigInt.asUintN(128, this.#state * MULTIPLIER + this.#increment);
  }
}

/** Return `SeedSequence(seed).generate_state(4, uint64)`: O'Neill's `seed_seq` with a pool of four words. */
function generateState(seed: bigint): bigint[] {
  let factor = 0x43b0d7e5;
  const hash = (word: number): number => {
    const before = word ^ factor;
    factor = Math.imul(factor, 0x931e8875);
    const hashed = Math.imul(before, factor);
    return hashed ^ (hashed >>> 16);
  };
  const pool = [Number(seed & 0xffffffffn), Number(seed >> 32n), 0, 0].map(hash) as [number, number, number, number];
  for (const from of pool.keys()) {
    for (const to of pool.keys()) {
      if (from !== to) {
        const mixed = Math.imul(0xca01f9dd, pool[to] ?? 0) - Math.imul(0x4973f715, hash(pool[from] ?? 0));
        pool[to] = mixed ^ ((mixed | 0) >>> 16);
      }
    }
  }
  factor = 0x8b51f9dd;
  const words = [...pool, ...pool].map((word) => {
    const before = word ^ factor;
    factor = Math.imul(factor, 0x58f38ded);
    const hashed = Math.imul(before, factor);
    return BigInt((hashed ^ (hashed >>> 16)) >>> 0);
  });
  return [0, 2, 4, 6].map((i) => (words[i] ?? 0n) | ((words[i + 1] ?? 0n) << 32n));
}
