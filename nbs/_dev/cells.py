"""Which cells of a notebook need which others, by the names that they bind, read and change.

`needed` finds the cells without which some cells cannot run, and `affected` the cells that show something else when
some names have other values. Both err on the side of too many cells: what cannot be read counts as needed, and so
does what is exported, because methods are added to classes in cells that nobody names. Files are not followed: a
cell that reads what another has written must also share a name with it.
"""

import ast
import builtins
import re
import symtable
from dataclasses import dataclass, field

PURE = re.compile(r"test_|assert_|print$|display$|show")  # calls of these change nothing that a later cell reads

EXPORTED = re.compile(r"^#\| *export", re.M)


@dataclass
class Names:
    "The names of one cell, each by what becomes of it."

    binds: set = field(default_factory=set)  # assigned, defined or imported
    surely: set = field(default_factory=set)  # bound by a statement that always runs, so that earlier values are gone
    reads: set = field(default_factory=set)  # read when the cell runs
    later: set = field(default_factory=set)  # read when a function of the cell is called
    sets: set = field(default_factory=set)  # objects that get an attribute or an item
    changes: set = field(default_factory=set)  # these, and objects that are passed to a call
    imported: set = field(default_factory=set)
    always: bool = False  # binds names that cannot be known, or is no Python

    def gives(self) -> set:
        return self.binds | self.changes


def root(node) -> str:
    "The name at which an expression such as `a.b[0].c(x)` begins; empty where there is none."
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def called(call: ast.Call) -> set:
    "The names of objects that a call, whose value is not used, may change."
    last = call.func.attr if isinstance(call.func, ast.Attribute) else root(call.func)
    if PURE.match(last):
        return set()
    given = [a for a in (*call.args, *(k.value for k in call.keywords)) if not isinstance(a, ast.Call)]
    return {root(node) for node in (*given, *([call.func] if isinstance(call.func, ast.Attribute) else []))}


def set_in(tree: ast.Module) -> set:
    "The names of objects of which a cell sets a part: `a.b = …`, `a[0] = …`."
    nodes = (n for n in ast.walk(tree) if isinstance(n, (ast.Attribute, ast.Subscript)))
    return {root(n) for n in nodes if isinstance(n.ctx, (ast.Store, ast.Del))}


def changed(tree: ast.Module) -> set:
    "The names of objects that a cell changes: these, `a.add(…)`, `fill(a)`, and what decorators get."
    found = set_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found |= called(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.decorator_list:
            found |= {root(d) for d in node.decorator_list}
            first = node.args.args[:1] if isinstance(node, ast.FunctionDef) else []
            found |= {root(a.annotation) for a in first if a.annotation}  # `@patch`
    return found - {"", *dir(builtins)}


def surely_bound(tree: ast.Module) -> set:
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            nodes = (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            found |= {n.id for n in nodes if isinstance(n.ctx, ast.Store)}
    return found


def functions_in(table: symtable.SymbolTable, inside: bool = False):
    "The scopes that run when a function is called; a comprehension of the cell itself is none."
    for child in table.get_children():
        own = inside or child.get_name() not in ("listcomp", "setcomp", "dictcomp", "genexpr")
        if own:
            yield child
        yield from functions_in(child, own)


def comprehensions_in(table: symtable.SymbolTable):
    "The scopes of the comprehensions that run with the cell."
    inner = {t.get_id() for t in functions_in(table)}
    for child in table.get_children():
        if child.get_id() not in inner:
            yield child
            yield from comprehensions_in(child)


class FirstUses(ast.NodeVisitor):
    "The names that a cell reads before it binds them itself, in the order in which it runs."

    def __init__(self):
        self.bound, self.read, self.maybe = set(), set(), 0

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self.read |= {node.id} - self.bound
        elif not self.maybe:
            self.bound.add(node.id)

    def in_order(self, *parts):
        for part in parts:
            for node in part if isinstance(part, list) else [part]:
                if node is not None:
                    self.visit(node)

    def visit_Assign(self, node):
        self.in_order(node.value, node.targets)

    def visit_AugAssign(self, node):
        if isinstance(node.target, ast.Name):
            self.read |= {node.target.id} - self.bound
        self.in_order(node.value, node.target)

    def visit_For(self, node):
        self.in_order(node.iter, node.target, node.body, node.orelse)

    def visit_comprehension_of(self, node):
        before = set(self.bound)  # what a comprehension binds is its own
        own = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in node.generators:
            self.in_order(part.iter, part.target, part.ifs)
        self.in_order(own)
        self.bound = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_of

    def perhaps(self, node):
        self.maybe += 1
        self.generic_visit(node)
        self.maybe -= 1

    visit_If = visit_Try = visit_While = visit_Lambda = perhaps

    def visit_FunctionDef(self, node):
        self.perhaps(node)
        self.bound |= set() if self.maybe else {node.name}

    visit_ClassDef = visit_FunctionDef

    def visit_ExceptHandler(self, node):
        before = set(self.bound)
        self.bound |= {node.name}
        self.perhaps(node)
        self.bound = before

    def visit_Import(self, node):
        self.bound |= {(a.asname or a.name).partition(".")[0] for a in node.names}

    visit_ImportFrom = visit_Import


def names_of(source: str) -> Names:
    "What a cell does with names."
    source = re.sub(r"^[%!].*$", "", source, flags=re.M)
    try:
        tree, table = ast.parse(source), symtable.symtable(source, "cell", "exec")
    except SyntaxError:
        return Names(always=True)
    imported = {s.get_name() for s in table.get_symbols() if s.is_imported()}
    inner = [s for t in functions_in(table) for s in t.get_symbols() if s.is_global()]
    shown = [s for t in comprehensions_in(table) for s in t.get_symbols() if s.is_global()]
    reads = {s.get_name() for s in (*table.get_symbols(), *shown) if s.is_referenced()}
    first = FirstUses()
    first.visit(tree)
    lambdas = {s.get_name() for s in inner if s.is_referenced()}
    binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    return Names(
        binds=binds | {s.get_name() for s in inner if s.is_assigned()},
        surely=surely_bound(tree) & binds,
        reads=(reads | lambdas) & first.read,  # a function of the cell may be called there
        later=lambdas,
        sets=set_in(tree),
        changes=changed(tree) & (reads | lambdas | binds) - imported - (binds - first.read),  # not what it has made
        imported=imported,
        always=any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree)),
    )


def read_cells(sources: list[str]) -> list[Names]:
    "The names of every cell. What is imported, such as `torch` in `torch.manual_seed(0)`, is not changed by a call."
    cells = [names_of(s) for s in sources]
    imported = set().union(*(c.imported for c in cells))
    for cell in cells:
        cell.changes -= imported
    return cells


def givers(cells: list[Names], name: str, before: int) -> list[int]:
    "The cells that give a name the value that it has before a cell."
    found = []
    for i in range(before - 1, -1, -1):
        if name in cells[i].gives():
            found.append(i)
        if name in cells[i].surely:
            break
    return found


def needed(sources: list[str], wanted: set[int]) -> set[int]:
    "The numbers of the cells that some cells need to run, these included."
    cells = read_cells(sources)
    found, todo = {}, [(i, i) for i in wanted]
    todo += [(i, i) for i, cell in enumerate(cells) if cell.always or EXPORTED.search(sources[i])]
    while todo:
        i, until = todo.pop()
        if found.get(i, -1) >= until:
            continue
        found[i] = until
        for name in cells[i].reads | cells[i].changes:
            todo += [(j, until) for j in givers(cells, name, i)]
        for name in cells[i].later:  # bound after the function, and before its call
            later = (j for j in givers(cells, name, until) if j > i)
            todo += [(j, until) for j in later if name in cells[j].binds | cells[j].sets]
    return set(found)


def affected(sources: list[str], names: set[str]) -> set[int]:
    "The numbers of the cells whose results follow from names, directly or through other cells."
    cells, anywhere, before = read_cells(sources), set(names), None
    while anywhere != before:  # a function may read what a later cell binds
        before, reached, found = anywhere, set(names), set()
        for i, cell in enumerate(cells):
            if cell.reads & reached or cell.gives() & names or cell.later & anywhere:
                found.add(i)
                reached |= cell.gives() - cell.imported
            else:
                reached -= cell.surely  # from here on, these have values that do not follow
        anywhere = anywhere | reached
    return found
