// Shapes of a robot as triangles with normals: of simple kinds, and of meshes that a page is given.

// Numbers in base64: of a kind, or in 16 bits with a scale.
function unpack(given, kind) {
  if (given.data) return Float32Array.from(unpack(given.data, Int16Array), x => x * given.scale);
  return new kind(Uint8Array.from(atob(given), letter => letter.charCodeAt(0)).buffer);
}

function prepareScene({shapes, meshes}) {
  const unpacked = meshes.map(({vertices, triangles, wide}) =>
    ({points: unpack(vertices), triangles: unpack(triangles, wide ? Uint32Array : Uint16Array)}));
  for (const shape of shapes) {
    shape.rotation = rotationOf(shape.quaternion);
    if (shape.kind === "mesh") shape.surface = unpacked[shape.mesh];
  }
}

// A mesh with normals, corner by corner: the mean of the faces around it that bend by less than 40
// degrees from its own. So curves are smooth, and edges sharp.
function shaded({points, triangles}) {
  const faces = triangles.length / 3, flat = new Float32Array(3 * faces), sizes = new Float32Array(faces);
  const first = new Uint32Array(points.length / 3 + 1), around = new Uint32Array(triangles.length);
  const corner = i => points.subarray(3 * triangles[i], 3 * triangles[i] + 3);
  for (let f = 0; f < faces; f++) {
    const [a, b, c] = [0, 1, 2].map(k => corner(3 * f + k));
    const [u, v] = [b, c].map(p => [p[0] - a[0], p[1] - a[1], p[2] - a[2]]), normal = cross(u, v);
    sizes[f] = Math.hypot(...normal);
    flat.set(normal.map(x => x / (sizes[f] || 1)), 3 * f);
  }
  for (const vertex of triangles) first[vertex + 1]++;
  for (let v = 1; v < first.length; v++) first[v] += first[v - 1];
  const next = first.slice();
  triangles.forEach((vertex, i) => { around[next[vertex]++] = Math.floor(i / 3); });
  const apart = new Float32Array(9 * faces), normals = new Float32Array(9 * faces);
  triangles.forEach((vertex, i) => {
    const own = flat.subarray(3 * Math.floor(i / 3)), sum = [0, 0, 0];
    for (let k = first[vertex]; k < first[vertex + 1]; k++) {
      const other = flat.subarray(3 * around[k]);
      if (dot(own, other) > 0.77) for (const j of [0, 1, 2]) sum[j] += sizes[around[k]] * other[j];
    }
    const length = Math.hypot(...sum) || 1;
    apart.set(corner(i), 3 * i);
    normals.set(sum.map(x => x / length), 3 * i);
  });
  return {points: apart, normals, triangles: Uint32Array.from(triangles.keys())};
}

// Points and normals of a shape in its own frame, and triangles.
function meshOf({kind, surface, size: [sx, sy, sz]}) {
  if (kind === "mesh") return shaded(surface);
  const points = [], normals = [], triangles = [];
  const grid = (rows, columns, vertex) => {
    const first = points.length / 3;
    for (let r = 0; r <= rows; r++) for (let c = 0; c <= columns; c++) {
      const [point, normal] = vertex(r / rows, c / columns), length = Math.hypot(...normal) || 1;
      points.push(...point);
      normals.push(...normal.map(x => x / length));
    }
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const at = first + r * (columns + 1) + c, below = at + columns + 1;
      triangles.push(at, below, at + 1, at + 1, below, below + 1);
    }
  };
  const around = v => [Math.cos(2 * Math.PI * v), Math.sin(2 * Math.PI * v)];
  if (kind === "box") {
    const half = [sx, sy, sz];
    for (let axis = 0; axis < 3; axis++) for (const side of [-1, 1]) grid(1, 1, (u, v) => {
      const normal = [0, 0, 0], point = [0, 0, 0];
      normal[axis] = side;
      point[axis] = side * half[axis];
      point[(axis + 1) % 3] = (2 * u - 1) * half[(axis + 1) % 3];
      point[(axis + 2) % 3] = (2 * v - 1) * half[(axis + 2) % 3];
      return [point, normal];
    });
  } else if (kind === "cylinder") {
    grid(1, 32, (u, v) => {
      const [x, y] = around(v);
      return [[sx * x, sx * y, (1 - 2 * u) * sz], [x, y, 0]];
    });
    for (const side of [-1, 1]) grid(1, 32, (u, v) => {
      const [x, y] = around(v);
      return [[u * sx * x, u * sx * y, side * sz], [0, 0, side]];
    });
  } else if (kind === "shaft" || kind === "head") {  // of an arrow: of radius 1, from z = 0 to 1
    const tip = kind === "head" ? 1 : 0;
    grid(1, 20, (u, v) => {
      const [x, y] = around(v);
      return [[x * (1 - tip * u), y * (1 - tip * u), u], [x, y, 0.5 * tip]];
    });
    grid(1, 20, (u, v) => {
      const [x, y] = around(v);
      return [[u * x, u * y, 0], [0, 0, -1]];
    });
  } else {
    const rows = kind === "capsule" ? 17 : 16;  // odd: the middle row is the straight part
    grid(rows, 28, (u, v) => {
      const [x, y] = around(v);
      if (kind !== "capsule") {
        const polar = Math.PI * u, s = Math.sin(polar), c = Math.cos(polar);
        return [[sx * s * x, sy * s * y, sz * c], [s * x / sx, s * y / sy, c / sz]];
      }
      const row = Math.round(u * rows), top = row <= 8;
      const polar = Math.PI * (top ? row : row - 1) / 16;
      const s = Math.sin(polar), c = Math.cos(polar);
      return [[sx * s * x, sx * s * y, sx * c + (top ? sz : -sz)], [s * x, s * y, c]];
    });
  }
  return {points, normals, triangles};
}
