/**
 * Arrays of numbers with a shape.
 *
 * @packageDocumentation
 */

import {
  dtypeOf,
  float16ToFloat32,
  itemSize,
  viewOf,
  type DType,
  type TypedArray,
  type TypedArrays,
} from "./dtypes.js";
import { mismatch } from "./errors.js";

/** The elements of a tensor: their bytes, or a function that writes them into as many zeros. */
export type Elements = Uint8Array | ((target: Uint8Array) => void);

/** The element type that a typed array holds unless the caller names another one. */
export type DTypeOf<A extends TypedArray> = Exclude<
  { [D in DType]: A extends TypedArrays[D] ? D : never }[DType],
  "bool" | "float16"
>;

/**
 * A dense array of numbers or truth values, in C order (the last dimension varies fastest).
 *
 * A tensor of a message refers to the message's bytes. Its typed array is a view of them where the machine allows that,
 * and otherwise a copy, which is made when `data` is first read.
 */
export class Tensor<D extends DType = DType> {
  /** The type of each element. */
  readonly dtype: D;
  /** The size of each dimension, outermost first; empty for a scalar. */
  readonly shape: readonly number[];

  #elements: Elements;
  #data: TypedArrays[D] | undefined;

  /**
   * Make a tensor of elements, whose number has to fit the shape.
   *
   * @internal
   */
  constructor(dtype: D, shape: readonly number[], elements: Elements) {
    this.dtype = dtype;
    this.shape = shape;
    this.#elements = elements;
  }

  /**
   * Return a tensor that refers to a typed array, which tells the type of the elements.
   *
   * @param array - The elements in C order.
   * @param shape - The size of each dimension; one dimension by default.
   * @throws TypeError - Another number of elements than the shape has.
   */
  static of<A extends TypedArray>(array: A, shape?: readonly number[]): Tensor<DTypeOf<A>>;
  /**
   * Return a tensor that refers to a typed array with elements of a type, where the array does not tell: `bool` for a
   * Uint8Array, `float16` for the bits in a Uint16Array.
   *
   * @param array - The elements in C order.
   * @param shape - The size of each dimension.
   * @param dtype - The type of the elements.
   * @throws TypeError - A type that the array cannot hold, or another number of elements than the shape has.
   */
  static of<D extends DType>(array: TypedArrays[D], shape: readonly number[], dtype: D): Tensor<D>;
  static of(array: TypedArray, shape: readonly number[] = [array.length], dtype?: DType): Tensor {
    const known = dtypeOf(array);
    const chosen = dtype ?? known;
    const isAlias = (chosen === "bool" && known === "uint8") || (chosen === "float16" && known === "uint16");
    if (chosen !== known && !isAlias) {
      throw new TypeError(`dtype: ${mismatch(`a type that a ${array.constructor.name} holds`, chosen)}`);
    }
    if (sizeOf(shape) !== array.length) {
      throw new TypeError(`shape: ${mismatch(`sizes for ${String(array.length)} elements`, `[${shape.join(", ")}]`)}`);
    }
    return new Tensor(chosen, shape, new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
  }

  /** The number of elements. */
  get size(): number {
    return sizeOf(this.shape);
  }

  /** The number of bytes of all elements. */
  get byteLength(): number {
    return this.size * itemSize(this.dtype);
  }

  /** The size of the first dimension; 1 for a scalar. */
  get length(): number {
    return this.shape[0] ?? 1;
  }

  /** The elements. Tensors that share them see each other's changes. */
  get data(): TypedArrays[D] {
    if (this.#data === undefined) {
      const bytes = this.#aligned();
      this.#data = viewOf(this.dtype, bytes.buffer, bytes.byteOffset, this.size);
      this.#elements = bytes;
    }
    return this.#data;
  }

  /** Whether the elements have a type. */
  is<E extends DType>(dtype: E): this is Tensor<E> {
    const own: DType = this.dtype;
    return own === dtype;
  }

  /**
   * Return the elements as the typed array of a type.
   *
   * @throws TypeError - A tensor of another type.
   */
  as<E extends DType>(dtype: E): TypedArrays[E] {
    if (!this.is(dtype)) {
      throw new TypeError(`dtype: ${mismatch(dtype, (this as Tensor).dtype)}`);
    }
    return this.data;
  }

  /** Return the elements in single precision: `data` itself if it is of float32, otherwise rounded copies. */
  toFloat32(): Float32Array {
    const data: TypedArray = this.data;
    if (this.is("float16")) {
      return float16ToFloat32(this.data);
    }
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
      return Float32Array.from(data, Number);
    }
    return data instanceof Float32Array ? data : Float32Array.from(data);
  }

  /** Return the rows from `begin` up to `end`, which share this tensor's elements. */
  rows(begin: number, end: number): Tensor<D> {
    const bytes = this.#bytes();
    const rowBytes = this.#rowBytes;
    const shape = [end - begin, ...this.shape.slice(1)];
    return new Tensor(this.dtype, shape, bytes.subarray(begin * rowBytes, end * rowBytes));
  }

  /** Return the elements of one row, which share this tensor's elements; a row of a vector is one element. */
  row(index: number): TypedArrays[D];
  /**
   * Return the elements of one row as the typed array of a type, where the compiler does not know it.
   *
   * @throws TypeError - A tensor of another type.
   */
  row<E extends DType>(index: number, dtype: E): TypedArrays[E];
  row(index: number, dtype: DType = this.dtype): TypedArray {
    return this.rows(index, index + 1).as(dtype);
  }

  /**
   * Return the rows at some positions, in new memory.
   *
   * @internal
   */
  gather(rows: readonly number[]): Tensor<D> {
    const bytes = this.#bytes();
    const rowBytes = this.#rowBytes;
    const gathered = new Uint8Array(rows.length * rowBytes);
    rows.forEach((row, place) => {
      gathered.set(bytes.subarray(row * rowBytes, (row + 1) * rowBytes), place * rowBytes);
    });
    return new Tensor(this.dtype, [rows.length, ...this.shape.slice(1)], gathered);
  }

  /**
   * Copy a row of a tensor of the same type and row shape.
   *
   * @internal
   */
  setRow(row: number, from: Tensor, fromRow: number): void {
    const rowBytes = this.#rowBytes;
    this.#bytes().set(from.#bytes().subarray(fromRow * rowBytes, (fromRow + 1) * rowBytes), row * rowBytes);
  }

  /** Write the elements as bytes, little endian, into as many zeros. */
  copyInto(target: Uint8Array): void {
    if (typeof this.#elements === "function") {
      this.#elements(target);
    } else {
      target.set(this.#elements);
    }
  }

  get #rowBytes(): number {
    return this.length === 0 ? 0 : this.byteLength / this.length;
  }

  /** Return the bytes of the elements, which are made if they do not exist yet. */
  #bytes(): Uint8Array {
    if (typeof this.#elements === "function") {
      const bytes = new Uint8Array(this.byteLength);
      this.#elements(bytes);
      this.#elements = bytes;
    }
    return this.#elements;
  }

  #aligned(): Uint8Array {
    const bytes = this.#bytes();
    return bytes.byteOffset % itemSize(this.dtype) === 0 ? bytes : bytes.slice();
  }
}

/** Return the number of elements that a shape has. */
export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/**
 * Columns by name: the leaves of a space, the infos of an agent or an environment, or recurrent states.
 *
 * The leaves of Dict and Tuple spaces are named by their paths, such as `camera` or `0/position`; the only leaf of any
 * other space has the empty name. An info that some rows lack has a mask beside it: a bool column with `_` in front of
 * the name, which is true in the rows that have a value.
 */
export class Columns extends Map<string, Tensor> {
  /**
   * The only leaf of a space that is no Dict or Tuple.
   *
   * @throws RangeError - Columns of a Dict or Tuple space.
   */
  get plain(): Tensor {
    return this.column("");
  }

  /**
   * Return a column.
   *
   * @throws RangeError - A name that no column has.
   */
  column(name: string): Tensor {
    const column = this.get(name);
    if (column === undefined) {
      const names = [...this.keys()].map((known) => `'${known}'`).join(", ");
      throw new RangeError(
        `name: ${mismatch(names === "" ? "no name, because there are no columns" : names, `'${name}'`)}`,
      );
    }
    return column;
  }
}
