package rollserve

import (
	"fmt"
	"math"
	"sort"
)

// Columns are arrays by name, each with a row for each step or for each segment.
//
// Observations and actions have one array for each leaf of their space. The leaf of a plain space, which is no Dict or
// Tuple, has the empty name: batch.Observations[""]. Other leaves are named by their path from the root, joined by `/`:
// the keys of Dicts and the positions in Tuples.
//
// Infos and recurrent states can have gaps. The rows without a value are 0 then, and the mask, a column of truth values
// of the same name with `_` in front, is false there.
type Columns map[string]Array

// Names returns the names in ascending order.
func (c Columns) Names() []string {
	names := make([]string, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Mask returns whether each row of an info has a value, and nil if all rows have one.
func (c Columns) Mask(name string) []bool {
	mask, ok := c[maskName(name)]
	if !ok || mask.DataType != Bool {
		return nil
	}
	return elements[bool](mask.data)
}

func (c Columns) rows(begin, end int) Columns {
	return c.mapped(func(array Array) Array { return array.Rows(begin, end) })
}

func (c Columns) gather(rows []int) Columns {
	return c.mapped(func(array Array) Array { return array.gather(rows) })
}

func (c Columns) mapped(function func(Array) Array) Columns {
	mapped := make(Columns, len(c))
	for name, array := range c {
		mapped[name] = function(array)
	}
	return mapped
}

func maskName(name string) string { return "_" + name }

// isMask reports whether a column is the mask of another one.
func (c Columns) isMask(name string) bool {
	if name == "" || name[0] != '_' {
		return false
	}
	_, ok := c[name[1:]]
	return ok
}

// withoutFullMasks returns the columns without masks that are true in every row.
func (c Columns) withoutFullMasks() Columns {
	kept := make(Columns, len(c))
	for name, array := range c {
		if !c.isMask(name) || !all(elements[bool](array.data)) {
			kept[name] = array
		}
	}
	return kept
}

func all(values []bool) bool {
	for _, value := range values {
		if !value {
			return false
		}
	}
	return true
}

// concatenateColumns returns the columns of all parts, one part after the other, in new arrays. The parts have to have
// the same names, types and row shapes.
func concatenateColumns(field string, parts []Columns) (Columns, error) {
	joined := make(Columns, len(parts[0]))
	for i, part := range parts {
		if len(part) != len(parts[0]) {
			return nil, mismatch(field, fmt.Sprintf("columns %q in each message", parts[0].Names()), parts[i].Names())
		}
	}
	for name, first := range parts[0] {
		arrays := make([]Array, len(parts))
		for i, part := range parts {
			array, ok := part[name]
			if !ok || array.DataType != first.DataType || !equal(array.rowShape(), first.rowShape()) {
				expected := fmt.Sprintf("%v in each message", first)
				return nil, mismatch(fmt.Sprintf("%s[%q]", field, name), expected, array)
			}
			arrays[i] = array
		}
		joined[name] = concatenate(arrays)
	}
	return joined, nil
}

// concatenate returns the rows of arrays of one type and row shape in a new array.
func concatenate(arrays []Array) Array {
	length := 0
	for _, array := range arrays {
		length += array.Len()
	}
	joined := zeros(arrays[0].DataType, length, arrays[0].rowShape())
	at := 0
	for _, array := range arrays {
		at += copy(joined.data[at:], array.data)
	}
	return joined
}

// concatenateInfos returns the infos of all parts, one part after the other, in new arrays. An info that a part lacks
// is a gap of the part's length. An info of several types gets one that holds each value; see commonType.
func concatenateInfos(field string, parts []Columns, lengths []int) (Columns, error) {
	joined, total := Columns{}, 0
	for _, length := range lengths {
		total += length
	}
	for _, part := range parts {
		for name, first := range part {
			if _, done := joined[name]; done || part.isMask(name) {
				continue
			}
			var arrays []Array
			for _, other := range parts {
				if array, ok := other[name]; ok {
					if !equal(array.rowShape(), first.rowShape()) {
						expected := fmt.Sprintf("rows of shape %v in each message", first.rowShape())
						return nil, mismatch(fmt.Sprintf("%s[%q]", field, name), expected, array)
					}
					arrays = append(arrays, array)
				}
			}
			dataType, err := commonType(fmt.Sprintf("%s[%q]", field, name), arrays)
			if err != nil {
				return nil, err
			}
			column, mask := zeros(dataType, total, first.rowShape()), make([]bool, total)
			for i, at := 0, 0; i < len(parts); at, i = at+lengths[i], i+1 {
				fillInfo(column.Rows(at, at+lengths[i]), mask[at:at+lengths[i]], parts[i], name)
			}
			joined[name] = column
			if !all(mask) {
				joined[maskName(name)] = NewArray(mask)
			}
		}
	}
	return joined, nil
}

// fillInfo copies an info of a part to its rows of the joined column and of the mask.
func fillInfo(column Array, mask []bool, part Columns, name string) {
	array, ok := part[name]
	if !ok {
		return
	}
	convert(column, array)
	if own := part.Mask(name); own != nil {
		copy(mask, own)
		return
	}
	for i := range mask {
		mask[i] = true
	}
}

// numberKind is the kind of a number: the order is that in which kinds fit into each other.
type numberKind int

const (
	truth numberKind = iota
	unsigned
	signed
	floating
)

func kindOf(dataType DataType) numberKind {
	switch dataType {
	case Bool:
		return truth
	case Uint8, Uint16, Uint32, Uint64:
		return unsigned
	case Int8, Int16, Int32, Int64:
		return signed
	default:
		return floating
	}
}

var typesBySize = map[numberKind]map[int]DataType{
	unsigned: {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64},
	signed:   {1: Int8, 2: Int16, 4: Int32, 8: Int64},
	floating: {2: Float16, 4: Float32, 8: Float64},
}

// maxExact is the magnitude up to which float64 holds every integer.
const maxExact = 1 << 53

// commonType returns the type that holds each value of all arrays: numpy's result_type, but uint64 for signed integers
// beside uint64. It returns an error for a negative one of these, and for integers beyond 2^53 beside floats.
func commonType(field string, arrays []Array) (DataType, error) {
	dataTypes, hasFloats := make([]DataType, len(arrays)), false
	for i, array := range arrays {
		dataTypes[i] = array.DataType
		hasFloats = hasFloats || kindOf(array.DataType) == floating
	}
	common := promoted(dataTypes)
	if kindOf(common) == floating && !hasFloats {
		common = Uint64
	}
	for _, array := range arrays {
		if misfit := misfitOf(array, common); misfit != nil {
			return common, mismatch(field, fmt.Sprintf("numbers that %v can hold", common), misfit)
		}
	}
	return common, nil
}

// misfitOf returns an integer of an array that the common type of it and others does not hold; nil for none.
func misfitOf(array Array, common DataType) any {
	if array.DataType == common || common != Uint64 && common != Float64 {
		return nil
	}
	switch kindOf(array.DataType) {
	case signed:
		for _, value := range numbers[int64](array) {
			if common == Uint64 && value < 0 || common == Float64 && (value < -maxExact || value > maxExact) {
				return value
			}
		}
	case unsigned:
		for _, value := range numbers[uint64](array) {
			if common == Float64 && value > maxExact {
				return value
			}
		}
	}
	return nil
}

// promoted returns the type that numpy's result_type gives for types: the smallest one that all values fit into, where
// float64 counts as one for integers of 64 bits.
//
// Floats come first, because a float may hold integers of both signs that only a larger integer type holds.
func promoted(dataTypes []DataType) DataType {
	result := dataTypes[0]
	for _, dataType := range dataTypes {
		if kindOf(dataType) == floating && (kindOf(result) != floating || dataType.Size() > result.Size()) {
			result = dataType
		}
	}
	for _, dataType := range dataTypes {
		result = promotedPair(result, dataType)
	}
	return result
}

func promotedPair(a, b DataType) DataType {
	low, high := kindOf(a), kindOf(b)
	if low > high {
		a, b, low, high = b, a, high, low
	}
	lowSize, highSize := a.Size(), b.Size()
	if low != high && low != truth {
		lowSize *= 2 // room for a sign, or for all digits in the fraction of a float
	}
	size := highSize
	if low != truth && lowSize > size {
		size = lowSize
	}
	if size > 8 {
		return Float64
	}
	if high == truth {
		return Bool
	}
	return typesBySize[high][size]
}

// convert copies the elements of an array to one of a type that they fit into.
func convert(to, from Array) {
	switch to.DataType {
	case from.DataType:
		copy(to.data, from.data)
	case Float16: // from truth values and integers of 8 bits
		halves := elements[Half](to.data)
		for i, value := range numbers[int16](from) {
			halves[i] = halfOf(value)
		}
	case Int8:
		copy(elements[int8](to.data), numbers[int8](from))
	case Int16:
		copy(elements[int16](to.data), numbers[int16](from))
	case Int32:
		copy(elements[int32](to.data), numbers[int32](from))
	case Int64:
		copy(elements[int64](to.data), numbers[int64](from))
	case Uint8:
		copy(elements[uint8](to.data), numbers[uint8](from))
	case Uint16:
		copy(elements[uint16](to.data), numbers[uint16](from))
	case Uint32:
		copy(elements[uint32](to.data), numbers[uint32](from))
	case Uint64:
		copy(elements[uint64](to.data), numbers[uint64](from))
	case Float32:
		copy(elements[float32](to.data), numbers[float32](from))
	case Float64:
		copy(elements[float64](to.data), numbers[float64](from))
	}
}

type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// numbers returns the elements of an array as numbers of a type that they fit into.
func numbers[T number](from Array) []T {
	converted := make([]T, from.Size())
	switch from.DataType {
	case Bool: // a byte that is 0 or 1
		cast(converted, elements[uint8](from.data))
	case Int8:
		cast(converted, elements[int8](from.data))
	case Int16:
		cast(converted, elements[int16](from.data))
	case Int32:
		cast(converted, elements[int32](from.data))
	case Int64:
		cast(converted, elements[int64](from.data))
	case Uint8:
		cast(converted, elements[uint8](from.data))
	case Uint16:
		cast(converted, elements[uint16](from.data))
	case Uint32:
		cast(converted, elements[uint32](from.data))
	case Uint64:
		cast(converted, elements[uint64](from.data))
	case Float16:
		for i, half := range elements[Half](from.data) {
			converted[i] = T(half.Float32())
		}
	case Float32:
		cast(converted, elements[float32](from.data))
	case Float64:
		cast(converted, elements[float64](from.data))
	}
	return converted
}

func cast[T, S number](to []T, from []S) {
	for i, value := range from {
		to[i] = T(value)
	}
}

// halfOf returns a whole number of up to eight bits in half precision, which has all of them.
func halfOf(value int16) Half {
	if value == 0 {
		return 0
	}
	bits := math.Float32bits(float32(value))
	return Half(bits>>31<<15 | (bits>>23&0xff-127+15)<<10 | bits>>13&0x3ff)
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
