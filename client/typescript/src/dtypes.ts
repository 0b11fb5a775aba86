/**
 * Element types of tensors: their typed arrays, their numbers on the wire, and conversions between them.
 *
 * @packageDocumentation
 */

import { DataType } from "./generated/rollserve/v1/tensor_pb.js";

/** The typed array that holds the elements of each type. */
export interface TypedArrays {
  /** One byte for each element, 0 or 1. */
  bool: Uint8Array;
  int8: Int8Array;
  int16: Int16Array;
  int32: Int32Array;
  int64: BigInt64Array;
  uint8: Uint8Array;
  uint16: Uint16Array;
  uint32: Uint32Array;
  uint64: BigUint64Array;
  /** The bits of each element, because Node 20 has no typed array of half precision; see {@link float16ToFloat32}. */
  float16: Uint16Array;
  float32: Float32Array;
  float64: Float64Array;
}

/** An element type of a tensor. */
export type DType = keyof TypedArrays;

/** A typed array of any element type. */
export type TypedArray = TypedArrays[DType];

type Constructor = new (buffer: ArrayBufferLike, byteOffset: number, length: number) => TypedArray;

interface DTypeInfo {
  readonly constructor: Constructor & { readonly BYTES_PER_ELEMENT: number };
  readonly dataType: DataType;
}

const INFOS: Readonly<Record<DType, DTypeInfo>> = {
  bool: { constructor: Uint8Array, dataType: DataType.BOOL },
  int8: { constructor: Int8Array, dataType: DataType.INT8 },
  int16: { constructor: Int16Array, dataType: DataType.INT16 },
  int32: { constructor: Int32Array, dataType: DataType.INT32 },
  int64: { constructor: BigInt64Array, dataType: DataType.INT64 },
  uint8: { constructor: Uint8Array, dataType: DataType.UINT8 },
  uint16: { constructor: Uint16Array, dataType: DataType.UINT16 },
  uint32: { constructor: Uint32Array, dataType: DataType.UINT32 },
  uint64: { constructor: BigUint64Array, dataType: DataType.UINT64 },
  float16: { constructor: Uint16Array, dataType: DataType.FLOAT16 },
  float32: { constructor: Float32Array, dataType: DataType.FLOAT32 },
  float64: { constructor: Float64Array, dataType: DataType.FLOAT64 },
};

const DTYPES = Object.keys(INFOS) as DType[];
const BY_DATA_TYPE: ReadonlyMap<DataType, DType> = new Map(DTYPES.map((dtype) => [INFOS[dtype].dataType, dtype]));

// Elements are little endian on the wire, and typed arrays have the byte order of the machine.
if (new Uint8Array(new Uint16Array([1]).buffer)[0] !== 1) {
  throw new Error("rollserve: expected a little-endian machine, got a big-endian one");
}

/** Return the number of bytes of one element. */
export function itemSize(dtype: DType): number {
  return INFOS[dtype].constructor.BYTES_PER_ELEMENT;
}

/** Return the number that stands for an element type on the wire. */
export function toDataType(dtype: DType): DataType {
  return INFOS[dtype].dataType;
}

/** Return the element type for a number of the wire; undefined for numbers that are not set or not known. */
export function fromDataType(dataType: DataType): DType | undefined {
  return BY_DATA_TYPE.get(dataType);
}

/** Return a typed array on a range of a buffer, which has to be aligned for the element type. */
export function viewOf<D extends DType>(
  dtype: D,
  buffer: ArrayBufferLike,
  byteOffset: number,
  size: number,
): TypedArrays[D] {
  return new INFOS[dtype].constructor(buffer, byteOffset, size) as TypedArrays[D];
}

/** Return the element type that a typed array holds unless the caller names another one. */
export function dtypeOf(array: TypedArray): DType {
  const found = DTYPES.find((dtype) => dtype !== "bool" && array instanceof INFOS[dtype].constructor);
  if (found === undefined) {
    throw new TypeError(`array: expected a typed array of a type that the wire has, got ${array.constructor.name}`);
  }
  return found;
}

const FLOAT16 = new Float32Array(1 << 16);

/** Return the values of half precision numbers, given by their bits, in single precision, which holds them exactly. */
export function float16ToFloat32(bits: Uint16Array): Float32Array {
  if (FLOAT16[1] === 0) {
    for (let code = 0; code < 1 << 15; code += 1) {
      const value = float16Value(code);
      FLOAT16[code] = value;
      FLOAT16[code | 0x8000] = -value;
    }
  }
  const values = new Float32Array(bits.length);
  for (let index = 0; index < bits.length; index += 1) {
    values[index] = FLOAT16[bits[index] ?? 0] ?? 0;
  }
  return values;
}

/** Return the bits of the half precision numbers nearest to some values; ties go to even, as in IEEE 754. */
export function float32ToFloat16(values: ArrayLike<number>): Uint16Array {
  return Uint16Array.from(values, float16Bits);
}

/**
 * Return the element type that holds the values of several ones, as numpy's `result_type` does.
 *
 * @param dtypes - At least one type.
 */
export function promote(dtypes: Iterable<DType>): DType {
  const unique = [...new Set(dtypes)];
  const floats = unique.filter(isFloat);
  const widest = floats.sort((a, b) => itemSize(b) - itemSize(a))[0];
  return unique.reduce(promotePair, widest ?? unique[0] ?? "float64");
}

/** Return elements of another type, converted to a type that {@link promote} gave for both. */
export function convert(array: TypedArray, from: DType, to: DType): TypedArray {
  if (from === to) {
    return array;
  }
  const numbers = from === "float16" ? float16ToFloat32(array as Uint16Array) : array;
  if (to === "float16") {
    return float32ToFloat16(numbers as ArrayLike<number>);
  }
  const target = viewOf(to, new ArrayBuffer(array.length * itemSize(to)), 0, array.length);
  if (target instanceof BigInt64Array || target instanceof BigUint64Array) {
    for (let index = 0; index < target.length; index += 1) {
      target[index] = BigInt(numbers[index] ?? 0);
    }
  } else {
    for (let index = 0; index < target.length; index += 1) {
      target[index] = Number(numbers[index]);
    }
  }
  return target;
}

/** Return whether a type is one of floats. */
export function isFloat(dtype: DType): boolean {
  return dtype.startsWith("float");
}

function isUnsigned(dtype: DType): boolean {
  return dtype.startsWith("u");
}

function promotePair(a: DType, b: DType): DType {
  if (a === b || b === "bool") {
    return a;
  }
  if (a === "bool") {
    return b;
  }
  if (isFloat(a) || isFloat(b)) {
    // An integer of n bits needs a float of more than n bits, up to double precision.
    return floatOf(Math.max(floatSizeFor(a), floatSizeFor(b)));
  }
  if (isUnsigned(a) === isUnsigned(b)) {
    return itemSize(a) >= itemSize(b) ? a : b;
  }
  const [unsigned, signed] = isUnsigned(a) ? [a, b] : [b, a];
  const size = Math.max(2 * itemSize(unsigned), itemSize(signed));
  return size > 8 ? "float64" : (`int${String(8 * size)}` as DType);
}

function floatSizeFor(dtype: DType): number {
  return isFloat(dtype) ? itemSize(dtype) : Math.min(2 * itemSize(dtype), 8);
}

function floatOf(size: number): DType {
  return size === 2 ? "float16" : size === 4 ? "float32" : "float64";
}

/** Return the value of a positive half precision number. */
function float16Value(bits: number): number {
  const exponent = bits >> 10;
  const fraction = bits & 0x3ff;
  if (exponent === 31) {
    return fraction === 0 ? Infinity : NaN;
  }
  return exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function float16Bits(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) {
    return 0x7e00;
  }
  if (size >= 65520) {
    return sign | 0x7c00;
  }
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const scaled = roundToEven(size / 2 ** (exponent - 10));
  // The fraction can round up to the next power of two: the sum then carries into the exponent, as it should.
  return sign | (scaled + (exponent + 14) * 1024);
}

function roundToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}
