// Command doccheck fails if an exported name of the packages in the given folders has no comment that begins with it.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"strings"
)

func main() {
	failed := false
	for _, folder := range os.Args[1:] {
		files := token.NewFileSet()
		isSource := func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
		packages, err := parser.ParseDir(files, folder, isSource, parser.ParseComments)
		if err != nil {
			log.Fatal(err)
		}
		for name, pkg := range packages {
			hasComment := false
			for _, file := range pkg.Files {
				hasComment = hasComment || file.Doc != nil
				for _, at := range undocumented(file) {
					fmt.Fprintln(os.Stderr, files.Position(at.pos), at.name, "needs a comment that begins with its name")
					failed = true
				}
			}
			if !hasComment {
				fmt.Fprintln(os.Stderr, folder, "needs a comment on package", name)
				failed = true
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}

type place struct {
	pos  token.Pos
	name string
}

// undocumented returns the exported names of a file without a comment of their own.
func undocumented(file *ast.File) []place {
	var found []place
	check := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		for _, doc := range docs {
			text := strings.TrimSpace(doc.Text())
			for _, article := range []string{"", "A ", "An ", "The "} {
				if strings.HasPrefix(text, article+name.Name) {
					return
				}
			}
		}
		found = append(found, place{name.Pos(), name.Name})
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil || hasExportedReceiver(decl.Recv) {
				check(decl.Name, decl.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					check(spec.Name, spec.Doc, decl.Doc)
				case *ast.ValueSpec:
					// A group of constants may have one comment for all.
					if decl.Doc == nil || !decl.Lparen.IsValid() {
						check(spec.Names[0], spec.Doc, decl.Doc)
					}
				}
			}
		}
	}
	return found
}

func hasExportedReceiver(receiver *ast.FieldList) bool {
	exported := false
	ast.Inspect(receiver, func(node ast.Node) bool {
		if name, ok := node.(*ast.Ident); ok && name.IsExported() {
			exported = true
		}
		return true
	})
	return exported
}
