package rollserve

import (
	"fmt"
	"math"
	"unsafe"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// DataType is the type of the elements of an Array, by numpy's name.
type DataType string

// The types that elements can have.
const (
	Bool    DataType = "bool"
	Int8    DataType = "int8"
	Int16   DataType = "int16"
	Int32   DataType = "int32"
	Int64   DataType = "int64"
	Uint8   DataType = "uint8"
	Uint16  DataType = "uint16"
	Uint32  DataType = "uint32"
	Uint64  DataType = "uint64"
	Float16 DataType = "float16"
	Float32 DataType = "float32"
	Float64 DataType = "float64"
)

// Size returns the number of bytes of an element; 0 for a type that is none of the constants.
func (d DataType) Size() int {
	switch d {
	case Bool, Int8, Uint8:
		return 1
	case Int16, Uint16, Float16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	default:
		return 0
	}
}

var dataTypes = map[DataType]pb.DataType{
	Bool:    pb.DataType_DATA_TYPE_BOOL,
	Int8:    pb.DataType_DATA_TYPE_INT8,
	Int16:   pb.DataType_DATA_TYPE_INT16,
	Int32:   pb.DataType_DATA_TYPE_INT32,
	Int64:   pb.DataType_DATA_TYPE_INT64,
	Uint8:   pb.DataType_DATA_TYPE_UINT8,
	Uint16:  pb.DataType_DATA_TYPE_UINT16,
	Uint32:  pb.DataType_DATA_TYPE_UINT32,
	Uint64:  pb.DataType_DATA_TYPE_UINT64,
	Float16: pb.DataType_DATA_TYPE_FLOAT16,
	Float32: pb.DataType_DATA_TYPE_FLOAT32,
	Float64: pb.DataType_DATA_TYPE_FLOAT64,
}

// Element is any Go type that the elements of an Array can have: of Float16 it is Half, of the others the type of the
// same name.
type Element interface {
	bool | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | Half | float32 | float64
}

// Array is a dense array of numbers or truth values in C order: the last axis varies fastest.
//
// Copies of an Array, and what Rows, Values and Bytes return, share one memory. The zero value stands for an array that
// is not there.
type Array struct {
	// DataType is the type of the elements.
	DataType DataType
	// Shape has the size of each axis; it is empty for a scalar.
	Shape []int

	data []byte // the elements, in the byte order of this machine
}

// NewArray returns an array of the given shape whose elements are in values. The array shares the memory of values.
// Without a shape, it has one axis. The call that sends the array fails with ErrInvalidArgument if the shape does not
// fit the number of values.
func NewArray[T Element](values []T, shape ...int) Array {
	if len(shape) == 0 {
		shape = []int{len(values)}
	}
	return Array{DataType: typeOf[T](), Shape: shape, data: bytesOf(values)}
}

// Scalar returns an array without axes that has one element.
func Scalar[T Element](value T) Array {
	return Array{DataType: typeOf[T](), data: bytesOf([]T{value})}
}

// ArrayFromBytes returns an array of the given type and shape whose elements are in data, in the byte order of this
// machine; see Array.Bytes. The array shares the memory of data. An empty shape is that of a scalar.
//
// The error is an ErrInvalidArgument if data has another size than the elements.
func ArrayFromBytes(dataType DataType, shape []int, data []byte) (Array, error) {
	array := Array{DataType: dataType, Shape: shape, data: data}
	if _, known := dataTypes[dataType]; !known {
		return Array{}, invalid("dataType", "a type of elements, such as Float32", fmt.Sprintf("%q", dataType))
	}
	for _, length := range shape {
		if length < 0 {
			return Array{}, invalid("shape", "sizes of at least 0", shape)
		}
	}
	if want := array.Size() * dataType.Size(); len(data) != want {
		return Array{}, invalid("data", fmt.Sprintf("%d bytes for %v", want, array), len(data))
	}
	return array, nil
}

// Values returns the elements of an array. The slice shares the memory of the array.
//
// The error is an ErrInvalidArgument if the elements have another type than T.
func Values[T Element](a Array) ([]T, error) {
	if want := typeOf[T](); a.DataType != want {
		return nil, invalid("T", fmt.Sprintf("the type of the elements, %v", a), want)
	}
	return elements[T](a.data), nil
}

// IsZero reports whether the array is the zero Array, which stands for one that is not there.
func (a Array) IsZero() bool { return a.DataType == "" }

// Bytes returns the elements of an array of any type as bytes, in the byte order of this machine. The slice shares the
// memory of the array.
func (a Array) Bytes() []byte { return a.data }

// Len returns the size of the first axis, the number of rows; 1 for a scalar, and 0 for the zero Array.
func (a Array) Len() int {
	switch {
	case a.IsZero():
		return 0
	case len(a.Shape) == 0:
		return 1
	default:
		return a.Shape[0]
	}
}

// Size returns the number of elements; 0 for the zero Array.
func (a Array) Size() int {
	if a.IsZero() {
		return 0
	}
	return product(a.Shape)
}

// RowSize returns the number of elements of a row, which is an element of the first axis.
func (a Array) RowSize() int { return product(a.rowShape()) }

// Rows returns the rows from begin to end, without end, as an array that shares the memory.
func (a Array) Rows(begin, end int) Array {
	rowBytes := a.rowBytes()
	shape := append([]int{end - begin}, a.rowShape()...)
	return Array{DataType: a.DataType, Shape: shape, data: a.data[begin*rowBytes : end*rowBytes : end*rowBytes]}
}

// String describes the array by type and shape.
func (a Array) String() string {
	if a.IsZero() {
		return "no array"
	}
	return fmt.Sprintf("%s %v", a.DataType, a.Shape)
}

func (a Array) rowShape() []int {
	if len(a.Shape) == 0 {
		return nil
	}
	return a.Shape[1:]
}

func (a Array) rowBytes() int { return a.RowSize() * a.DataType.Size() }

// gather returns the rows at the given positions in a new array.
func (a Array) gather(rows []int) Array {
	gathered := zeros(a.DataType, len(rows), a.rowShape())
	rowBytes := a.rowBytes()
	for i, row := range rows {
		copy(gathered.data[i*rowBytes:], a.data[row*rowBytes:(row+1)*rowBytes])
	}
	return gathered
}

// setRow copies a row of an array of the same type and row shape.
func (a Array) setRow(row int, from Array, fromRow int) {
	rowBytes := a.rowBytes()
	copy(a.data[row*rowBytes:(row+1)*rowBytes], from.data[fromRow*rowBytes:(fromRow+1)*rowBytes])
}

// zeros returns a new array of zeros.
func zeros(dataType DataType, length int, rowShape []int) Array {
	shape := append([]int{length}, rowShape...)
	return Array{DataType: dataType, Shape: shape, data: make([]byte, product(shape)*dataType.Size())}
}

// Half is a number of IEEE 754 half precision: one bit for the sign, five for the exponent, ten for the fraction.
type Half uint16

// Float32 returns the number in single precision, which has all numbers of half precision.
func (h Half) Float32() float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch exponent {
	case 0: // zero, or a number without a leading 1
		magnitude := float32(fraction) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(magnitude) | sign)
	case 0x1f: // infinity, or not a number
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	default:
		return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
	}
}

// typeOf returns the data type for a Go type.
func typeOf[T Element]() DataType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case Half:
		return Float16
	case float32:
		return Float32
	default:
		return Float64
	}
}

func product(shape []int) int {
	size := 1
	for _, length := range shape {
		size *= length
	}
	return size
}

// elements returns bytes as elements. The slice shares the memory of the bytes, unless they are not aligned.
//
// Memory that Go allocates for the bytes of a tensor is aligned for its elements, because its size is a multiple of
// theirs; bytes that come from elsewhere, such as a slice of a larger message, are copied if they are not.
func elements[T Element](data []byte) []T {
	var zero T
	size, alignment := unsafe.Sizeof(zero), unsafe.Alignof(zero)
	count := len(data) / int(size)
	if count == 0 {
		return []T{}
	}
	if uintptr(unsafe.Pointer(&data[0]))%alignment != 0 {
		copied := make([]T, count)
		copy(bytesOf(copied), data)
		return copied
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&data[0])), count)
}

// bytesOf returns elements as bytes that share their memory.
func bytesOf[T Element](values []T) []byte {
	if len(values) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))
}

var isLittleEndian = bytesOf([]uint16{1})[0] == 1

// inLittleEndian returns elements of this machine's byte order in the order of the wire, or the other way round. The
// result is the same memory where both orders are the same, otherwise a copy.
func inLittleEndian(data []byte, size int) []byte {
	if isLittleEndian || size == 1 {
		return data
	}
	return swapped(data, size)
}

// swapped returns a copy of elements with the bytes of each in the opposite order.
func swapped(data []byte, size int) []byte {
	copied := make([]byte, len(data))
	for i := range data {
		copied[i] = data[i/size*size+size-1-i%size]
	}
	return copied
}
