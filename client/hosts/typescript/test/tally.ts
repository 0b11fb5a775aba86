/**
 * A host of the tests, whose environment adds up its actions: nested spaces, infos of all kinds, and failures.
 *
 * @packageDocumentation
 */

import type { JsonObject } from "@bufbuild/protobuf";

import {
  box,
  DataType,
  discrete,
  Json,
  serve,
  type Environment,
  type Infos,
  type Space,
  type Start,
  type Step,
  type Value,
} from "rollserve-host";

const FLAGS: Space = { kind: { case: "multiBinary", value: { shape: [2n] } } };
const LEVELS = {
  dataType: DataType.UINT8,
  nvec: { dataType: DataType.UINT8, shape: [2n], data: Uint8Array.of(2, 5) },
  start: { dataType: DataType.UINT8, shape: [2n], data: Uint8Array.of(0, 10) },
};

class Tally implements Environment {
  readonly observationSpace: Space = {
    kind: {
      case: "dict",
      value: {
        spaces: [
          { name: "total", space: box(Float64Array.of(-1e9, -1e9), Float64Array.of(1e9, 1e9)) },
          { name: "last", space: { kind: { case: "tuple", value: { spaces: [FLAGS] } } } },
        ],
      },
    },
  };
  readonly actionSpace: Space = {
    kind: {
      case: "tuple",
      value: { spaces: [discrete(3, -1), FLAGS, { kind: { case: "multiDiscrete", value: LEVELS } }] },
    },
  };
  readonly isNondeterministic = true;

  readonly #first: number;
  #total = 0;

  constructor(first: number) {
    this.#first = first;
  }

  reset(seed: bigint, options: JsonObject | undefined): Start {
    this.#total = this.#first + Number(seed);
    return {
      observation: this.#observation([0, 0]),
      infos: { seed: Number(seed), options: new Json(options ?? null) },
    };
  }

  step([changes, flags, levels]: Value): Step {
    const change = Number(changes?.[0]);
    const [first, second] = Array.from(flags ?? [], Number);
    if (first === 1 && second === 1) {
      // eslint-disable-next-line @typescript-eslint/only-throw-error
      throw 7;
    }
    if (first === 1) {
      throw new Error("the tally is lost");
    }
    this.#total += change;
    const [low, high] = Array.from(levels ?? [], Number);
    const infos: Infos = {
      levels: { data: Int32Array.of(low ?? -1, high ?? -1) },
      ...(this.#total % 2 === 0 ? { half: this.#total / 2 } : { odd: new Json({ total: this.#total }) }),
      ...(second === 1 ? { mixed: { data: new Float64Array(1 + (low ?? 0)) } } : {}),
    };
    return {
      observation: this.#observation([first ?? -1, second ?? -1]),
      reward: change,
      terminated: this.#total === 0,
      truncated: this.#total > 100,
      infos,
    };
  }

  #observation(flags: readonly number[]): Value {
    return [Float64Array.of(this.#total, 0.5), Int8Array.from(flags)];
  }
}

serve({
  name: "Tally",
  versions: {},
  make: ({ kwargs, task }) => {
    if (kwargs !== undefined) {
      throw new Error(`kwargs: expected none, got ${JSON.stringify(kwargs)}`);
    }
    const first = task?.argument ?? 0;
    if (typeof first !== "number") {
      throw new Error(`task: expected a number, got ${JSON.stringify(first)}`);
    }
    return new Tally(first);
  },
});
