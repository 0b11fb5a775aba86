/**
 * Lossless compression of columns: the codecs that this machine has, and decompression within known bounds.
 *
 * Zstandard is part of Node from 22.15 on. Before that, and for LZ4, optional packages decompress; they are loaded when
 * they are first needed.
 *
 * @packageDocumentation
 */

import { createRequire } from "node:module";
import * as zlib from "node:zlib";

import { InvalidArgumentError, mismatch } from "./errors.js";
import { Compression as Codec } from "./generated/rollserve/v1/tensor_pb.js";

/** A lossless codec for columns: `lz4` is faster, `zstd` compresses better. */
export type Compression = "lz4" | "zstd";

/** The largest decompressed size of a message, in bytes: the wire contract has no larger messages. */
export const MAX_RAW_BYTES = 256 * 1024 * 1024;

type Decompress = (data: Uint8Array, byteLength: number) => Uint8Array;

interface Zlib {
  readonly zstdDecompressSync?: (data: Uint8Array, options: { maxOutputLength: number }) => Uint8Array;
}
interface Lz4 {
  readonly uncompressSync: (data: Uint8Array) => Uint8Array;
}
interface Zstd {
  readonly decompress: (data: Uint8Array) => Uint8Array;
}

const CODECS: Readonly<Record<Compression, Codec>> = { lz4: Codec.LZ4, zstd: Codec.ZSTD };
const PACKAGES: Readonly<Record<Compression, string>> = { lz4: "lz4-napi", zstd: "fzstd" };
/** The largest number of bytes that one compressed byte can stand for, by the definition of the format. */
const MAX_RATIO: Readonly<Record<Compression, number>> = { lz4: 255, zstd: 1 << 15 };

const require = createRequire(import.meta.url);
const loaded = new Map<Compression, Decompress>();

/**
 * Return codecs as requests name them, in the same order.
 *
 * @throws InvalidArgumentError - An unknown codec, or one whose package is not installed.
 */
export function toCodecs(compression: Compression | readonly Compression[] | undefined): Codec[] {
  const names = typeof compression === "string" ? [compression] : (compression ?? []);
  return names.map((name) => {
    if (!Object.hasOwn(CODECS, name)) {
      throw InvalidArgumentError.of("compression", "lz4 or zstd", name);
    }
    try {
      load(name);
    } catch {
      throw InvalidArgumentError.of("compression", "an installed codec", name, `npm install ${PACKAGES[name]}`);
    }
    return CODECS[name];
  });
}

/**
 * Return data as it was before compression.
 *
 * @param data - One block of LZ4, or one frame of Zstandard.
 * @param codec - The codec that compressed the data.
 * @param byteLength - The size of the decompressed data.
 * @throws Error - An unknown codec, malformed data, or data of another decompressed size.
 */
export function decompress(data: Uint8Array, codec: Codec, byteLength: number): Uint8Array {
  const name = codec === Codec.LZ4 ? "lz4" : codec === Codec.ZSTD ? "zstd" : undefined;
  if (name === undefined) {
    throw new Error(`compression: ${mismatch("a member of Compression", codec)}`);
  }
  if (byteLength > Math.min(MAX_RAW_BYTES, MAX_RATIO[name] * data.byteLength)) {
    throw new Error(`data: ${mismatch(`enough bytes for ${String(byteLength)}`, data.byteLength)}`);
  }
  let raw: Uint8Array;
  try {
    raw = load(name)(data, byteLength);
  } catch (error) {
    throw new Error(`data: ${mismatch(`data of ${name}`, "malformed data")}`, { cause: error });
  }
  if (raw.byteLength !== byteLength) {
    throw new Error(`data: ${mismatch(`${String(byteLength)} decompressed bytes`, raw.byteLength)}`);
  }
  return new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
}

function load(name: Compression): Decompress {
  let decompressor = loaded.get(name);
  if (decompressor === undefined) {
    decompressor = name === "lz4" ? loadLz4() : loadZstd();
    loaded.set(name, decompressor);
  }
  return decompressor;
}

function loadLz4(): Decompress {
  const { uncompressSync } = require(PACKAGES.lz4) as Lz4;
  return (data, byteLength) => {
    // The package expects the size before the block, and allocates as much.
    const block = new Uint8Array(4 + data.byteLength);
    new DataView(block.buffer).setUint32(0, byteLength, true);
    block.set(data, 4);
    return uncompressSync(block);
  };
}

function loadZstd(): Decompress {
  const { zstdDecompressSync } = zlib as Zlib;
  if (zstdDecompressSync !== undefined) {
    return (data, byteLength) => zstdDecompressSync(data, { maxOutputLength: Math.max(byteLength, 1) });
  }
  const { decompress: decompressFrame } = require(PACKAGES.zstd) as Zstd;
  return (data, byteLength) => {
    // The package allocates the size that the frame states.
    const stated = statedSize(data);
    if (stated !== undefined && stated !== byteLength) {
      throw new Error(mismatch(`a frame of ${String(byteLength)} bytes`, `a frame that states ${String(stated)}`));
    }
    return decompressFrame(data);
  };
}

/** Return the decompressed size that a frame of Zstandard states (RFC 8878, 3.1.1.1), or undefined if it does not. */
function statedSize(frame: Uint8Array): number | undefined {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  const descriptor = view.getUint8(4);
  const isSingleSegment = (descriptor & 0x20) !== 0;
  const offset = 5 + (isSingleSegment ? 0 : 1) + ([0, 1, 2, 4][descriptor & 3] ?? 0);
  switch (descriptor >> 6) {
    case 0:
      return isSingleSegment ? view.getUint8(offset) : undefined;
    case 1:
      return view.getUint16(offset, true) + 256;
    case 2:
      return view.getUint32(offset, true);
    default:
      return Number(view.getBigUint64(offset, true));
  }
}
