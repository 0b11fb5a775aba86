/**
 * Spaces of observations and actions, as gymnasium defines them.
 *
 * @packageDocumentation
 */

import { fromDataType, type DType } from "./dtypes.js";
import { mismatch } from "./errors.js";
import type { Space as SpaceMessage } from "./generated/rollserve/v1/space_pb.js";
import type { DataType } from "./generated/rollserve/v1/tensor_pb.js";
import { sizeOf, type Tensor } from "./tensor.js";
import { tensorFromMessage } from "./tensor_messages.js";

/** A space of arrays of one shape and type. */
export interface Box {
  readonly kind: "box";
  /** The type of each element. */
  readonly dtype: DType;
  /** The shape of a value. */
  readonly shape: readonly number[];
  /** The least value of each element, inclusive: of the space's shape, or a scalar that all elements share. */
  readonly low: Tensor;
  /** The greatest value of each element, inclusive: of the space's shape, or a scalar that all elements share. */
  readonly high: Tensor;
}

/** A space of the integers from `start` to `start + n - 1`; a value is an int64 of shape (). */
export interface Discrete {
  readonly kind: "discrete";
  /** The number of values. */
  readonly n: bigint;
  /** The least value. */
  readonly start: bigint;
}

/** A space of integer arrays whose elements each have a range of their own. */
export interface MultiDiscrete {
  readonly kind: "multiDiscrete";
  /** The type of each element. */
  readonly dtype: DType;
  /** The number of values of each element. Its shape is the shape of a value. */
  readonly nvec: Tensor;
  /** The least value of each element. */
  readonly start: Tensor;
}

/** A space of int8 arrays of zeros and ones. */
export interface MultiBinary {
  readonly kind: "multiBinary";
  /** The shape of a value. */
  readonly shape: readonly number[];
}

/** A space of named values. Each leaf of a subspace is a column, named `key`, or `key/…` if the subspace is nested. */
export interface Dict {
  readonly kind: "dict";
  /** The subspaces by key, in the order of the environment's own space. */
  readonly spaces: ReadonlyMap<string, Space>;
}

/** A space of ordered values. Each leaf of a subspace is a column, named `0`, `1`, …, or `0/…` if it is nested. */
export interface Tuple {
  readonly kind: "tuple";
  /** The subspaces. */
  readonly spaces: readonly Space[];
}

/** Any space. */
export type Space = Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple;

/** Return the size of a value after `gymnasium.spaces.flatten`, which is the input of an MLP. */
export function flatSize(space: Space): number {
  switch (space.kind) {
    case "box":
    case "multiBinary":
      return sizeOf(space.shape);
    case "discrete":
      return Number(space.n);
    case "multiDiscrete":
      return Array.from(space.nvec.data, Number).reduce((sum, n) => sum + n, 0);
    case "dict":
    case "tuple":
      return [...space.spaces.values()].reduce((sum, subspace) => sum + flatSize(subspace), 0);
  }
}

/** A type of elements and a shape, as each row of a column has them. */
export interface RowForm {
  /** The type of each element. */
  readonly dtype: DType;
  /** The shape of a row; that of a scalar by default. */
  readonly shape?: readonly number[] | undefined;
}

/** Return the form of each leaf's values by the leaf's name, which is a path in nested spaces. */
export function leafForms(space: Space, path = ""): Map<string, RowForm> {
  switch (space.kind) {
    case "box":
      return new Map([[path, { dtype: space.dtype, shape: space.shape }]]);
    case "discrete":
      return new Map([[path, { dtype: "int64" }]]);
    case "multiDiscrete":
      return new Map([[path, { dtype: space.dtype, shape: space.nvec.shape }]]);
    case "multiBinary":
      return new Map([[path, { dtype: "int8", shape: space.shape }]]);
    case "dict":
    case "tuple": {
      const subspaces = [...space.spaces.entries()];
      const prefix = path === "" ? "" : `${path}/`;
      return new Map(subspaces.flatMap(([key, subspace]) => [...leafForms(subspace, `${prefix}${String(key)}`)]));
    }
  }
}

/**
 * Return the space that a message describes.
 *
 * @throws Error - A message without a kind, or with one that this version does not know.
 */
export function spaceFromMessage(message: SpaceMessage | undefined): Space {
  const kind = message?.kind;
  switch (kind?.case) {
    case "box": {
      const { dataType, shape, low, high } = kind.value;
      return {
        kind: "box",
        dtype: dtypeFrom(dataType),
        shape: shape.map(Number),
        low: tensorFromMessage(low),
        high: tensorFromMessage(high),
      };
    }
    case "discrete":
      return { kind: "discrete", n: kind.value.n, start: kind.value.start };
    case "multiDiscrete": {
      const { dataType, nvec, start } = kind.value;
      return {
        kind: "multiDiscrete",
        dtype: dtypeFrom(dataType),
        nvec: tensorFromMessage(nvec),
        start: tensorFromMessage(start),
      };
    }
    case "multiBinary":
      return { kind: "multiBinary", shape: kind.value.shape.map(Number) };
    case "dict": {
      const spaces = kind.value.spaces.map(({ name, space }) => [name, spaceFromMessage(space)] as const);
      return { kind: "dict", spaces: new Map(spaces) };
    }
    case "tuple":
      return { kind: "tuple", spaces: kind.value.spaces.map(spaceFromMessage) };
    default:
      throw new Error(`kind: ${mismatch("a kind of Space", "none that this client knows")}`);
  }
}

function dtypeFrom(dataType: DataType): DType {
  const dtype = fromDataType(dataType);
  if (dtype === undefined) {
    throw new Error(`data_type: ${mismatch("a member of DataType", dataType)}`);
  }
  return dtype;
}
