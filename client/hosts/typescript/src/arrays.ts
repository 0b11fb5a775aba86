/**
 * Typed arrays and the wire's types of elements.
 *
 * @packageDocumentation
 */

import { expect } from "./errors.js";
import { DataType } from "./generated/rollserve/v1/tensor_pb.js";

/** An array of the elements of a tensor. */
export type TypedArray =
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

interface ArrayType {
  readonly dataType: DataType;
  readonly name: string;
  readonly itemSize: number;
  readonly make: new (buffer: ArrayBuffer, offset: number, length: number) => TypedArray;
}

// The first type of an array is that of its elements where nothing else tells.
const ARRAY_TYPES: readonly ArrayType[] = (
  [
    [DataType.INT8, Int8Array],
    [DataType.INT16, Int16Array],
    [DataType.INT32, Int32Array],
    [DataType.INT64, BigInt64Array],
    [DataType.UINT8, Uint8Array],
    [DataType.UINT16, Uint16Array],
    [DataType.UINT32, Uint32Array],
    [DataType.UINT64, BigUint64Array],
    [DataType.FLOAT32, Float32Array],
    [DataType.FLOAT64, Float64Array],
    [DataType.BOOL, Uint8Array],
    [DataType.FLOAT16, Uint16Array],
  ] as const
).map(([dataType, make]) => ({ dataType, name: DataType[dataType], itemSize: make.BYTES_PER_ELEMENT, make }));

/** Return the array type for a type of the wire. */
export function arrayTypeFor(dataType: DataType): ArrayType {
  const found = ARRAY_TYPES.find((each) => each.dataType === dataType);
  expect(found !== undefined, "data_type", "a member of DataType", dataType);
  return found;
}

/** Return the array type of an array. */
export function arrayTypeOf(array: TypedArray): ArrayType {
  const found = ARRAY_TYPES.find(({ make }) => array instanceof make);
  expect(found !== undefined, "array", "a typed array of numbers", typeof array);
  return found;
}

/** Return a view of the bytes of an array. */
export function bytesOf(array: TypedArray): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}
