package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// column is a column of batches: how it is read, checked, cut and joined.
type column interface {
	spec() columnSpec
	// decode sets the column of a batch to the one of a message, as far as the message has it.
	decode(batch *EpisodeBatch, message *pb.EpisodeBatch) error
	// check returns an error unless the column has a row for each step or segment.
	check(batch *EpisodeBatch) error
	// cut sets the column of a batch to a range of rows of another batch, which share its memory.
	cut(to, from *EpisodeBatch, begin, end int)
	// gather sets the column of a batch to some rows of another batch, in new memory.
	gather(to, from *EpisodeBatch, rows []int)
	// concatenate sets the column of a batch to the rows of all batches, in new memory unless there is a single one.
	concatenate(joined *EpisodeBatch, batches []*EpisodeBatch) error
}

// columnSpec is what the table says about a column.
type columnSpec struct {
	name string
	// byStep says whether the column has a row for each step, rather than for each segment.
	byStep bool
	// isLast says whether a segment that is joined of several has what the last of them has, rather than the first.
	isLast bool
	// isOptional says whether batches can be without the column, which is nil or the zero Array then.
	isOptional bool
	// hasGaps says whether rows can be without a value, and batches without a name that others have.
	hasGaps bool
}

func (s columnSpec) spec() columnSpec { return s }

func (s columnSpec) numRows(batch *EpisodeBatch) int {
	if s.byStep {
		return batch.NumSteps()
	}
	return batch.Len()
}

// header is a column with a number or a truth value for each segment.
type header[T any] struct {
	columnSpec
	field func(*EpisodeBatch) *[]T
	// message returns the values in a message; it is nil if messages have none.
	message func(*pb.EpisodeBatch) []T
}

func (h header[T]) decode(batch *EpisodeBatch, message *pb.EpisodeBatch) error {
	if h.message == nil {
		return nil
	}
	if values := h.message(message); len(values) > 0 {
		*h.field(batch) = values
	}
	return nil
}

func (h header[T]) check(batch *EpisodeBatch) error {
	expected := fmt.Sprintf("%d values", batch.Len())
	if h.isOptional {
		if *h.field(batch) == nil {
			return nil
		}
		expected += ", or none"
	}
	if length := len(*h.field(batch)); length != batch.Len() {
		return mismatch(h.name, expected, length)
	}
	return nil
}

func (h header[T]) cut(to, from *EpisodeBatch, begin, end int) {
	*h.field(to) = slice(*h.field(from), begin, end)
}

func (h header[T]) gather(to, from *EpisodeBatch, rows []int) {
	*h.field(to) = pick(*h.field(from), rows)
}

func (h header[T]) concatenate(joined *EpisodeBatch, batches []*EpisodeBatch) error {
	*h.field(joined) = *h.field(batches[0])
	if len(batches) > 1 {
		*h.field(joined) = join(batches, func(b *EpisodeBatch) []T { return *h.field(b) })
	}
	return nil
}

// tensors is a column of arrays: of the leaves of a space, of infos by name, or a single one.
type tensors struct {
	columnSpec
	// field returns the field of a batch: a *Columns, or for a single array an *Array or a *[]float64.
	field func(*EpisodeBatch) any
	// message returns the field of a message: a *pb.Tensor for a single array, otherwise a []*pb.NamedTensor.
	message func(*pb.EpisodeBatch) any
	// original returns the field that a batch without the column has in its place; it is nil if there is none.
	original func(*EpisodeBatch) any
}

func (t tensors) decode(batch *EpisodeBatch, message *pb.EpisodeBatch) error {
	var columns Columns
	var err error
	switch content := t.message(message).(type) {
	case []*pb.NamedTensor:
		if len(content) == 0 && t.isOptional {
			return nil
		}
		if columns, err = decodeNamed(content); err != nil {
			return fmt.Errorf("%s%w", t.name, err)
		}
	case *pb.Tensor:
		if content == nil && t.isOptional {
			return nil
		}
		array, err := decodeTensor(content, true)
		if err != nil {
			return fmt.Errorf("%s.%w", t.name, err)
		}
		expected := "shape (N)"
		if t.byStep {
			expected = "shape (T)"
		}
		_, isFloat64 := t.field(batch).(*[]float64)
		if isFloat64 {
			expected = "float64 of " + expected
		}
		if len(array.Shape) != 1 || isFloat64 && array.DataType != Float64 {
			return mismatch(t.name, expected, array)
		}
		columns = Columns{"": array}
	}
	setColumns(t.field(batch), columns)
	return nil
}

func (t tensors) check(batch *EpisodeBatch) error {
	columns, numRows := columnsIn(t.field(batch)), t.numRows(batch)
	_, isNamed := t.field(batch).(*Columns)
	for name, array := range columns {
		path, expected := t.name, fmt.Sprintf("shape (%d)", numRows)
		if isNamed {
			path, expected = fmt.Sprintf("%s[%q]", t.name, name), fmt.Sprintf("%d rows", numRows)
		}
		if len(array.Shape) == 0 || array.Len() != numRows {
			return mismatch(path, expected, array)
		}
		if t.hasGaps && columns.isMask(name) && (array.DataType != Bool || len(array.Shape) != 1) {
			return mismatch(path, "a mask, with one truth value for each row", array)
		}
	}
	return nil
}

func (t tensors) cut(to, from *EpisodeBatch, begin, end int) {
	if columns := columnsIn(t.field(from)); columns != nil || !t.isOptional {
		setColumns(t.field(to), columns.rows(begin, end))
	}
}

func (t tensors) gather(to, from *EpisodeBatch, rows []int) {
	if columns := columnsIn(t.field(from)); columns != nil || !t.isOptional {
		setColumns(t.field(to), t.withoutFullMasks(columns.gather(rows)))
	}
}

// concatenate leaves the column out where no batch has it, or where one lacks it and has no original in its place.
func (t tensors) concatenate(joined *EpisodeBatch, batches []*EpisodeBatch) error {
	parts, lengths, numParts := make([]Columns, len(batches)), make([]int, len(batches)), 0
	for i, batch := range batches {
		parts[i], lengths[i] = columnsIn(t.field(batch)), t.numRows(batch)
		if parts[i] != nil {
			numParts++
		}
	}
	if t.isOptional && numParts < len(batches) {
		if numParts == 0 || t.original == nil {
			return nil
		}
		for i, batch := range batches {
			if parts[i] == nil {
				parts[i] = columnsIn(t.original(batch))
			}
		}
	}
	var columns Columns
	var err error
	switch {
	case len(batches) == 1:
		columns = t.withoutFullMasks(parts[0])
	case t.hasGaps:
		columns, err = concatenateInfos(t.name, parts, lengths)
	default:
		columns, err = concatenateColumns(t.name, parts)
	}
	if err == nil {
		setColumns(t.field(joined), columns)
	}
	return err
}

// withoutFullMasks returns infos without masks that are true in every row; rows that had gaps may be elsewhere.
func (t tensors) withoutFullMasks(columns Columns) Columns {
	if !t.hasGaps {
		return columns
	}
	return columns.withoutFullMasks()
}

// columnsIn returns the content of a field of a batch as columns; a single array has the empty name. Nil is for none.
func columnsIn(field any) Columns {
	switch field := field.(type) {
	case *Array:
		if !field.IsZero() {
			return Columns{"": *field}
		}
	case *[]float64:
		if *field != nil {
			return Columns{"": NewArray(*field)}
		}
	case *Columns:
		return *field
	}
	return nil
}

// setColumns sets a field of a batch to columns, as columnsIn returns them.
func setColumns(field any, columns Columns) {
	switch field := field.(type) {
	case *Array:
		*field = columns[""]
	case *[]float64:
		*field = nil
		if array, ok := columns[""]; ok {
			*field = elements[float64](array.data)
		}
	case *Columns:
		*field = columns
	}
}
