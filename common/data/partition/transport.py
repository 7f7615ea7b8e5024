"""Matrices with given row and column sums: the nearest ones, and whole numbers (partitioning §2, §4, §5)."""

import numpy as np

EXACT = 1e-9  # error of row and column sums after a projection, relative to the total
ITERATIONS = 20_000
NODES = 2_000  # of a search tree; a time limit would give other partitions on slower machines


def project(target: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the nearest non-negative matrix with these sums, by Dykstra's alternating projections.

    Matrices with these sums form an affine space, whose projection has a closed form and needs no correction;
    only clipping at zero does.
    """
    height, width = target.shape
    slack = EXACT * max(float(rows.sum()), 1.0)
    matrix, correction = target.astype(np.float64), np.zeros(target.shape)
    for _ in range(ITERATIONS):
        over, under = rows - matrix.sum(axis=1), columns - matrix.sum(axis=0)
        if (matrix >= 0).all() and max(np.abs(over).max(), np.abs(under).max()) <= slack:
            break
        matrix = matrix + over[:, None] / width + under[None, :] / height - over.sum() / (height * width)
        shifted = matrix + correction
        matrix = np.maximum(shifted, 0)
        correction = shifted - matrix
    return matrix


def rounded(exact: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return whole numbers with exactly these sums, each less than one away from `exact`.

    Choosing the cells to round up is a linear program over a totally unimodular matrix, so its vertices are
    whole; the fractions themselves are a solution, so there is always one.
    """
    exact = np.maximum(exact, 0)
    floors = np.floor(exact + 1e-9)
    fraction = np.clip(exact - floors, 0, 1)
    over, under = rows - floors.sum(axis=1), columns - floors.sum(axis=0)
    for reach, cells in ((1, fraction > 1e-9), (2, np.ones(exact.shape, dtype=bool))):
        up = _vertex(1 - 2 * fraction[cells], cells, over, under, (0, reach))
        if up is not None:
            result: np.ndarray = floors.astype(np.int64)
            result[cells] += up
            return result
    raise ArithmeticError("a matrix could not be rounded; its row and column sums must have been wrong")


def balanced(
    goal: np.ndarray, support: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray | None:
    """Return whole numbers on a support, each at least one, with these sums and nearest to the goal.

    Nearest means the least sum of absolute differences from a goal of whole numbers, which makes vertices
    whole. None: there is no such matrix.
    """
    if (goal[support] < 1).any():
        return None
    more = less = np.ones(int(support.sum()))
    bounds = np.concatenate(
        [np.full((len(more), 2), (0, np.inf)), np.stack([0 * less, goal[support] - 1], axis=1)]
    )
    over, under = rows - goal.sum(axis=1), columns - goal.sum(axis=0)
    change = _vertex(np.concatenate([more, less]), support, over, under, bounds, signs=(1, -1))
    if change is None:
        return None
    found: np.ndarray = goal.astype(np.int64)
    found[support] += change[: len(more)] - change[len(more) :]
    return found


def spread(
    rows: np.ndarray, wanted: np.ndarray, columns: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    """Choose exactly wanted[t] cells of each row t so that a matrix with these sums exists; None: impossible.

    It is a mixed-integer program, so the answer is definite; among many choices the generator decides by the
    order of rows and columns. TimeoutError: the search tree grew too large to decide.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import block_array, csr_array, diags_array, eye_array, kron

    by_row, by_column = rng.permutation(len(rows)), rng.permutation(len(columns))
    height, width = len(rows), len(columns)
    cells = height * width
    size, count, room = rows[by_row], wanted[by_row], columns[by_column]
    # Every other chosen cell holds at least one.
    most = np.minimum((size - count + 1)[:, None], room[None, :]).ravel()
    row_sums = kron(eye_array(height), np.ones((1, width)), format="csr")
    column_sums = kron(np.ones((1, height)), eye_array(width), format="csr")
    nothing = csr_array((height, cells))
    sums = block_array([[row_sums, None], [column_sums, None], [nothing, row_sums]], format="csr")
    totals = np.concatenate([size, room, count])
    at_least_one = block_array([[eye_array(cells), -eye_array(cells)]], format="csr")
    none_unless_chosen = block_array([[-eye_array(cells), diags_array(most.astype(float))]], format="csr")
    solution = milp(
        np.zeros(2 * cells),
        integrality=np.ones(2 * cells),
        bounds=Bounds(0, np.concatenate([most, np.ones(cells)])),
        constraints=[
            LinearConstraint(sums, totals, totals),
            LinearConstraint(at_least_one, 0, np.inf),
            LinearConstraint(none_unless_chosen, 0, np.inf),
        ],
        options={"node_limit": NODES},
    )
    if solution.status == 2:
        return None
    if solution.x is None:
        raise TimeoutError
    chosen = np.zeros((height, width), dtype=bool)
    chosen[np.ix_(by_row, by_column)] = solution.x[cells:].reshape(height, width) > 0.5
    return chosen


def _vertex(
    cost: np.ndarray,
    cells: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    bounds: "np.ndarray | tuple[int, int]",
    signs: tuple[int, ...] = (1,),
) -> np.ndarray | None:
    """Solve a transport problem over some cells by the simplex method; None if it has no solution."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, vstack

    if not cells.any():
        return np.zeros(0, np.int64) if not rows.any() and not columns.any() else None
    at_row, at_column = np.nonzero(cells)
    number = np.arange(len(at_row))
    by_row = csr_array((np.ones(len(number)), (at_row, number)), shape=(cells.shape[0], len(number)))
    by_column = csr_array((np.ones(len(number)), (at_column, number)), shape=(cells.shape[1], len(number)))
    sums = vstack([by_row, by_column], format="csr")
    matrix = hstack([sign * sums for sign in signs], format="csr")
    solution = linprog(
        cost, A_eq=matrix, b_eq=np.concatenate([rows, columns]), bounds=bounds, method="highs-ds"
    )
    if solution.status != 0:
        return None
    whole: np.ndarray = np.rint(solution.x).astype(np.int64)
    assert np.abs(solution.x - whole).max() < 1e-6, "a vertex of a transport problem is whole"
    return whole
