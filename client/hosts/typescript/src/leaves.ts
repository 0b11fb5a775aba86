/**
 * Leaves of spaces, and columns with a value of a leaf for each row.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { arrayTypeFor, bytesOf, type TypedArray } from "./arrays.js";
import type { Value } from "./environment.js";
import { expect, mismatch } from "./errors.js";
import type { Space } from "./generated/rollserve/v1/space_pb.js";
import { Compression, DataType, NamedTensorSchema, type NamedTensor } from "./generated/rollserve/v1/tensor_pb.js";

/** A leaf of a space: a column of the wire. */
export interface Leaf {
  /** The path from the root. */
  readonly name: string;
  readonly dataType: DataType;
  readonly shape: readonly number[];
  /** The number of elements of a value. */
  readonly size: number;
  /** The least and the greatest value of each element, inclusive; empty for no bounds. */
  readonly low: readonly (number | bigint)[];
  readonly high: readonly (number | bigint)[];
}

/** Return the leaves of a space, in its order. */
export function leavesOf(space: Space | undefined, path = ""): Leaf[] {
  const kind = space?.kind;
  const within = (name: string | number): string => (path === "" ? String(name) : `${path}/${String(name)}`);
  switch (kind?.case) {
    case "box":
      return [leaf(path, kind.value.dataType, kind.value.shape)];
    case "discrete": {
      const { n, start } = kind.value;
      return [leaf(path, DataType.INT64, [], [start], [start + n - 1n])];
    }
    case "multiDiscrete": {
      const { dataType, nvec, start } = kind.value;
      expect(nvec !== undefined && start !== undefined, "multi_discrete", "nvec and start", "one of them at most");
      const low = Array.from(arrayOf(start.dataType, start.data), BigInt);
      const counts = Array.from(arrayOf(nvec.dataType, nvec.data), BigInt);
      return [
        leaf(
          path,
          dataType,
          nvec.shape,
          low,
          low.map((least, i) => least + (counts[i] ?? 0n) - 1n),
        ),
      ];
    }
    case "multiBinary": {
      const made = leaf(path, DataType.INT8, kind.value.shape);
      return [{ ...made, low: Array<number>(made.size).fill(0), high: Array<number>(made.size).fill(1) }];
    }
    case "text":
      return [leaf(path, DataType.UINT32, [kind.value.maxLength])];
    case "dict":
      return kind.value.spaces.flatMap(({ name, space: part }) => leavesOf(part, within(name)));
    case "tuple":
      return kind.value.spaces.flatMap((part, i) => leavesOf(part, within(i)));
    default:
      throw new Error("kind: expected a kind of Space, got none");
  }
}

/** A column of actions. */
interface ActionColumn {
  readonly array: TypedArray;
  readonly size: number;
}

/**
 * Return the columns of the actions of a number of rows, as copies.
 *
 * @throws Error - Columns of other names, types or shapes than the leaves have for as many rows, or integers out of
 * range.
 */
export function actionColumns(sent: readonly NamedTensor[], leaves: readonly Leaf[], numRows: number): ActionColumn[] {
  expect(sent.length === leaves.length, "actions", `a tensor for each of ${String(leaves.length)} leaves`, sent.length);
  return leaves.map(({ name, dataType, shape, size, low, high }, i) => {
    const { name: sentName = "", tensor } = sent[i] ?? {};
    const field = `actions['${name}']`;
    expect(sentName === name, field, "this name", `'${sentName}'`);
    const expected = formOf(dataType, [numRows, ...shape], numRows * size * arrayTypeFor(dataType).itemSize);
    const got = formOf(tensor?.dataType, tensor?.shape ?? [], tensor?.data.byteLength);
    expect(got === expected && tensor?.compression === Compression.UNSPECIFIED, field, expected, got);
    const array = arrayOf(dataType, tensor.data);
    low.forEach((least, j) => {
      const greatest = high[j] ?? least;
      for (let k = j; k < array.length; k += size) {
        const value = array[k] ?? 0;
        if (value < least || greatest < value) {
          throw mismatch(field, `${String(least)} to ${String(greatest)}`, value);
        }
      }
    });
    return { array, size };
  });
}

/** Return the action of a row. */
export function actionOf(columns: readonly ActionColumn[], row: number): Value {
  return columns.map(({ array, size }) => array.subarray(row * size, (row + 1) * size));
}

/** The columns of the observations of some rows, zeros at first. */
export class ObservationColumns {
  readonly #columns: readonly { leaf: Leaf; bytes: Uint8Array }[];
  readonly #numRows: number;

  constructor(leaves: readonly Leaf[], numRows: number) {
    this.#columns = leaves.map((each) => ({
      leaf: each,
      bytes: new Uint8Array(numRows * each.size * arrayTypeFor(each.dataType).itemSize),
    }));
    this.#numRows = numRows;
  }

  /**
   * Set the observation of a row.
   *
   * @throws Error - An observation that is not of the leaves.
   */
  set(row: number, observation: Value): void {
    const count = this.#columns.length;
    expect(observation.length === count, "observation", `${String(count)} arrays`, observation.length);
    this.#columns.forEach(({ leaf: { name, dataType, size }, bytes }, i) => {
      const { make } = arrayTypeFor(dataType);
      const array = observation[i];
      if (!(array instanceof make) || array.length !== size) {
        const got = array === undefined ? "none" : `a ${array.constructor.name} of ${String(array.length)}`;
        throw mismatch(`observation['${name}']`, `a ${make.name} of ${String(size)} elements`, got);
      }
      bytes.set(bytesOf(array), row * array.byteLength);
    });
  }

  /** Return the columns as messages. */
  messages(): NamedTensor[] {
    return this.#columns.map(({ leaf: { name, dataType, shape }, bytes }) =>
      create(NamedTensorSchema, {
        name,
        tensor: { dataType, shape: [this.#numRows, ...shape].map(BigInt), data: bytes },
      }),
    );
  }
}

function leaf(
  name: string,
  dataType: DataType,
  sizes: readonly bigint[],
  low: readonly bigint[] = [],
  high: readonly bigint[] = [],
): Leaf {
  const shape = sizes.map(Number);
  const size = shape.reduce((product, length) => product * length, 1);
  return { name, dataType, shape, size, low, high };
}

/** Return a copy of the elements, since the bytes of a message are not aligned. */
function arrayOf(dataType: DataType, data: Uint8Array): TypedArray {
  const { make, itemSize } = arrayTypeFor(dataType);
  return new make(new Uint8Array(data).buffer, 0, data.byteLength / itemSize);
}

function formOf(dataType: DataType | undefined, shape: readonly (number | bigint)[], byteLength = 0): string {
  const type = DataType[dataType ?? DataType.UNSPECIFIED];
  return `${type} of shape (${shape.join(", ")}), ${String(byteLength)} bytes`;
}
