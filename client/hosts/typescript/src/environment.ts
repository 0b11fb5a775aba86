/**
 * What a program gives to its host.
 *
 * @packageDocumentation
 */

import type { JsonObject, JsonValue, MessageInitShape } from "@bufbuild/protobuf";

import { arrayTypeOf, bytesOf, type TypedArray } from "./arrays.js";
import type { SpaceSchema } from "./generated/rollserve/v1/space_pb.js";

/** A space as an object in the form of the message `Space`; `box` and `discrete` return those of two kinds. */
export type Space = MessageInitShape<typeof SpaceSchema>;

/**
 * A value of a space: a typed array for each leaf, in the order of the space. Truth values are zeros and ones in a
 * Uint8Array, numbers of half precision their bits in a Uint16Array.
 */
export type Value = readonly TypedArray[];

/** An array with a shape; one dimension by default. */
export interface Tensor {
  readonly data: TypedArray;
  readonly shape?: readonly number[];
}

/** A value that travels as JSON. */
export class Json {
  constructor(readonly value: JsonValue) {}
}

/** Infos by name. In all rows, the values of a name have one type and shape, or are JSON. */
export type Infos = Readonly<Record<string, number | boolean | Tensor | Json>>;

/** What a reset has led to. */
export interface Start {
  readonly observation: Value;
  readonly infos?: Infos;
}

/** What a step has led to. */
export interface Step extends Start {
  readonly reward: number;
  /** Whether the environment has ended the episode. */
  readonly terminated: boolean;
  /** Whether a limit has ended the episode. */
  readonly truncated: boolean;
}

/** One environment. An error that it throws fails its row alone, whose next reset makes another environment. */
export interface Environment {
  /** The space of observations. */
  readonly observationSpace: Space;
  /**
   * The space of actions. The actions that `step` gets have its types and shapes, and the integers among them are in
   * range; elements of a Box may be out of bounds.
   */
  readonly actionSpace: Space;
  /** The number of steps after which an episode is truncated; none by default. */
  readonly maxEpisodeSteps?: number;
  /** Whether an episode is more than a function of its seed and actions. */
  readonly isNondeterministic?: boolean;

  /** Begin an episode. The seed has 64 bits. */
  reset(seed: bigint, options: JsonObject | undefined): Start;

  /** Make a step of an episode that has begun and not ended. */
  step(action: Value): Step;
}

/** What environments are to be made with. */
export interface Arguments {
  readonly kwargs: JsonObject | undefined;
  /** A method that each environment is to be called with once it is made, and its argument. */
  readonly task: { readonly method: string; readonly argument: JsonValue } | undefined;
}

/** An environment that is offered to workers. */
export interface Host {
  /** The name of the environment, for people. */
  readonly name: string;
  /** Versions that determine what the environment does, by package. */
  readonly versions: Readonly<Record<string, string>>;

  /** Make an environment; throw if the arguments are not understood. */
  make(asked: Arguments): Environment;
}

/** Return the Box of the arrays between two bounds, inclusive. */
export function box(low: TypedArray, high: TypedArray, shape: readonly number[] = [low.length]): Space {
  const { dataType } = arrayTypeOf(low);
  const sizes = shape.map(BigInt);
  const tensor = (bounds: TypedArray): { dataType: typeof dataType; shape: bigint[]; data: Uint8Array } => ({
    dataType,
    shape: sizes,
    data: bytesOf(bounds),
  });
  return { kind: { case: "box", value: { dataType, shape: sizes, low: tensor(low), high: tensor(high) } } };
}

/** Return the Discrete space of the integers from `start` to `start + n - 1`, each a BigInt64Array of one element. */
export function discrete(n: number, start = 0): Space {
  return { kind: { case: "discrete", value: { n: BigInt(n), start: BigInt(start) } } };
}
