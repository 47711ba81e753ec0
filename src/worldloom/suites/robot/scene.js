// The robot in 3D: WebGL where there is any, a plain drawing on a 2D canvas where there is none.
// Shapes are made of triangles by triangles.js. Lengths in metres; z points up. A rotation is a
// 3 x 3 matrix, column by column.

const FIELD = 35 * Math.PI / 180;  // vertical field of view
const LIGHT = [0.3, -0.48, 0.824];  // towards it, of length 1

// A canvas has as many pixels as it covers on the screen, up to two a point.
function fitCanvas(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
}

// Colours of the scene as the page has them now.
function theme() {
  const style = getComputedStyle(document.documentElement);
  const color = name => {
    const text = style.getPropertyValue(`--${name}`).trim();
    const long = text.length === 4 ? `#${[...text.slice(1)].map(x => x + x).join("")}` : text;
    return [1, 3, 5].map(i => parseInt(long.slice(i, i + 2), 16) / 255);
  };
  const names = ["sky", "tile", "other", "mark", "push", "force"];
  return {...Object.fromEntries(names.map(name => [name, color(name)])), shadow: [...color("shadow"), 0.22]};
}

// Poses ------------------------------------------------------------------------------------------

function rotationOf([w, x, y, z]) {
  return [
    1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y),
    2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x),
    2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)];
}

function turn(m, v) {
  return [0, 1, 2].map(i => m[i] * v[0] + m[3 + i] * v[1] + m[6 + i] * v[2]);
}

function product(a, b) {
  return [0, 3, 6].flatMap(c => turn(a, [b[c], b[c + 1], b[c + 2]]));
}

// Between two frames positions are mixed, and quaternions too, on the shorter way round.
function bodyPose(record, body, frame, share) {
  const {positions, quaternions, bodies, steps} = record;
  const after = Math.min(frame + 1, steps - 1);
  const a = (frame * bodies + body), b = (after * bodies + body);
  const place = [0, 1, 2].map(i =>
    positions[3 * a + i] + share * (positions[3 * b + i] - positions[3 * a + i]));
  let dot = 0;
  for (let i = 0; i < 4; i++) dot += quaternions[4 * a + i] * quaternions[4 * b + i];
  const sign = dot < 0 ? -1 : 1;
  const mixed = [0, 1, 2, 3].map(i =>
    (1 - share) * quaternions[4 * a + i] + share * sign * quaternions[4 * b + i]);
  const length = Math.hypot(...mixed) || 1;
  return {place, turned: rotationOf(mixed.map(x => x / length))};
}

function shapePoses(record, time) {
  const exact = Math.min(Math.max(time / record.seconds, 0), record.steps - 1);
  const frame = Math.floor(exact), share = exact - frame;
  const bodies = Array.from({length: record.bodies}, (_, b) => bodyPose(record, b, frame, share));
  return record.shapes.map(shape => {
    const body = bodies[shape.body], inner = turn(body.turned, shape.position);
    return {place: body.place.map((x, i) => x + inner[i]),
      turned: product(body.turned, shape.rotation)};
  });
}

function basePlace(record, time) {
  const exact = Math.min(Math.max(time / record.seconds, 0), record.steps - 1);
  const frame = Math.floor(exact), after = Math.min(frame + 1, record.steps - 1);
  return [0, 1, 2].map(i => record.base[3 * frame + i]
    + (exact - frame) * (record.base[3 * after + i] - record.base[3 * frame + i]));
}

// Forces as arrows, in lengths of the robot's height: how long one is that could carry its weight,
// as a push, which ends short of the base, and under a foot, where it begins.
const PUSHED = 2, CARRIED = 0.8, LONGEST = 1.2;

function forceArrows({height, weight}, base, push, feet, theme) {
  const arrows = [], size = push ? Math.hypot(...push) : 0;
  if (size > 0) {
    const along = [push[0] / size, push[1] / size, 0], gap = 0.17 * height;
    const length = height * Math.min(LONGEST, PUSHED * size / weight);
    arrows.push({from: base.map((x, i) => x - (gap + length) * along[i]),
      to: base.map((x, i) => x - gap * along[i]), color: theme.push});
  }
  for (const {force, at} of feet) {
    const newtons = Math.hypot(...force);
    if (newtons < 0.02 * weight) continue;
    const scale = height * Math.min(CARRIED / weight, LONGEST / newtons);
    arrows.push({from: at, to: at.map((x, i) => x + scale * force[i]), color: theme.force});
  }
  return arrows;
}

// Where the camera is: it looks at `target` from `distance`, forward along the last axis.
function axesOf(camera) {
  const {azimuth: a, elevation: e} = camera;
  return {
    right: [-Math.sin(a), Math.cos(a), 0],
    up: [-Math.sin(e) * Math.cos(a), -Math.sin(e) * Math.sin(a), Math.cos(e)],
    back: [Math.cos(e) * Math.cos(a), Math.cos(e) * Math.sin(a), Math.sin(e)]};
}

const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];

// WebGL ------------------------------------------------------------------------------------------

const SHAPE_VERTEX = `#version 300 es
uniform mat4 camera, pose; uniform vec3 light; uniform bool flattened;
in vec3 point, normal; out vec3 facing, place;
void main() {
  vec4 there = pose * vec4(point, 1.0);
  if (flattened) there.xyz = vec3(there.xy - light.xy / light.z * there.z, 0.001);
  facing = mat3(pose) * normal;
  place = there.xyz;
  gl_Position = camera * there;
}`;
const SHAPE_PIXEL = `#version 300 es
precision highp float;
uniform vec3 color, eye, light; uniform vec4 shadow; uniform bool flattened;
in vec3 facing, place; out vec4 pixel;
void main() {
  if (flattened) { pixel = shadow; return; }
  vec3 n = normalize(facing), to_eye = normalize(eye - place), middle = normalize(light + to_eye);
  if (dot(n, to_eye) < -0.2) n = -n;  // the inside of an open mesh
  float lit = max(dot(n, light), 0.0), sky = 0.5 + 0.5 * n.z;
  float rim = pow(1.0 - max(dot(n, to_eye), 0.0), 3.0);
  vec3 shown = color * (0.46 + 0.18 * sky + 0.46 * lit) + 0.12 * pow(max(dot(n, middle), 0.0), 36.0);
  pixel = vec4(shown * (1.0 - 0.25 * rim), 1.0);
}`;
const FLOOR_VERTEX = `#version 300 es
uniform mat4 camera; uniform vec3 target; in vec2 corner; out vec2 place;
void main() {
  place = target.xy + corner * 30.0;
  gl_Position = camera * vec4(place, 0.0, 1.0);
}`;
const FLOOR_PIXEL = `#version 300 es
precision highp float;
uniform vec3 target, tile, other, sky, mark; uniform float reach; in vec2 place; out vec4 pixel;
void main() {
  vec2 at = place / 0.25, width = max(fwidth(at), 1e-5);
  // The share of either colour under the pixel: a checker that does not flicker far away.
  vec2 low = at - 0.5 * width, high = at + 0.5 * width;
  vec2 sum = (abs(fract(high * 0.5) - 0.5) - abs(fract(low * 0.5) - 0.5)) * 2.0 / width;
  vec3 shown = mix(tile, other, 0.5 - 0.5 * sum.x * sum.y);
  float line = abs(place.x) / max(fwidth(place.x), 1e-5);  // where the world's x is 0
  shown = mix(mark, shown, clamp(line - 0.5, 0.0, 1.0));
  float far = length(place - target.xy) / reach;
  pixel = vec4(mix(shown, sky, smoothstep(0.35, 1.0, far)), 1.0);
}`;

function compile(gl, vertex, pixel) {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, pixel]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  const places = {};
  const count = gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS);
  for (let i = 0; i < count; i++) {
    const {name} = gl.getActiveUniform(program, i);
    places[name] = gl.getUniformLocation(program, name);
  }
  return {program, at: places};
}

function cameraMatrix(camera, aspect) {
  const {right, up, back} = axesOf(camera);
  const near = 0.05, far = 60, f = 1 / Math.tan(FIELD / 2);
  const eye = camera.target.map((x, i) => x + camera.distance * back[i]);
  const rows = [right.map(x => x * f / aspect), up.map(x => x * f), back.map(x => -x)];
  const matrix = new Float32Array(16);
  for (let i = 0; i < 3; i++) {
    matrix[4 * i] = rows[0][i];
    matrix[4 * i + 1] = rows[1][i];
    matrix[4 * i + 2] = rows[2][i] * (far + near) / (far - near);
    matrix[4 * i + 3] = rows[2][i];
  }
  const [x, y, depth] = rows.map(row => -dot(row, eye));
  matrix.set([x, y, depth * (far + near) / (far - near) - 2 * far * near / (far - near), depth], 12);
  return {matrix, eye};
}

// uneven: what belongs to no robot is the ground, and there is no other floor.
function webglView(canvas, shapes, uneven) {
  const gl = canvas.getContext("webgl2", {antialias: true, stencil: true, alpha: false});
  if (!gl) throw new Error("there is no WebGL 2");
  const body = compile(gl, SHAPE_VERTEX, SHAPE_PIXEL), floor = compile(gl, FLOOR_VERTEX, FLOOR_PIXEL);
  const points = [], normals = [], triangles = [], parts = [], known = new Map();
  for (const shape of [...shapes, {kind: "shaft", size: []}, {kind: "head", size: []}]) {
    if (known.has(shape.surface)) {  // a mesh that another shape shows, too
      parts.push(known.get(shape.surface));
      continue;
    }
    const mesh = meshOf(shape), offset = points.length / 3;
    parts.push({first: triangles.length * 4, count: mesh.triangles.length});
    if (shape.surface) known.set(shape.surface, parts.at(-1));
    for (const x of mesh.points) points.push(x);
    for (const x of mesh.normals) normals.push(x);
    for (const x of mesh.triangles) triangles.push(x + offset);
  }
  const fill = (program, name, size, numbers) => {
    const place = gl.getAttribLocation(program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(numbers), gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, size, gl.FLOAT, false, 0, 0);
  };
  const robot = gl.createVertexArray();
  gl.bindVertexArray(robot);
  fill(body.program, "point", 3, points);
  fill(body.program, "normal", 3, normals);
  gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
  gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, new Uint32Array(triangles), gl.STATIC_DRAW);
  const ground = gl.createVertexArray();
  gl.bindVertexArray(ground);
  fill(floor.program, "corner", 2, [-1, -1, 1, -1, -1, 1, 1, 1]);

  const drawPart = (part, m, place, color) => {
    gl.uniformMatrix4fv(body.at.pose, false, [m[0], m[1], m[2], 0, m[3], m[4], m[5], 0,
      m[6], m[7], m[8], 0, ...place, 1]);
    gl.uniform3fv(body.at.color, color);
    gl.drawElements(gl.TRIANGLES, part.count, gl.UNSIGNED_INT, part.first);
  };
  const drawShapes = poses =>
    poses.forEach(({place, turned}, i) => drawPart(parts[i], turned, place, shapes[i].color));
  const drawArrow = ({from, to, color}, thick) => {
    const gap = to.map((x, i) => x - from[i]), length = Math.hypot(...gap);
    const along = gap.map(x => x / length), head = Math.min(7 * thick, 0.6 * length);
    const side = cross(along, Math.abs(along[2]) < 0.9 ? [0, 0, 1] : [1, 0, 0]);
    const one = side.map(x => x / Math.hypot(...side)), two = cross(along, one);
    const part = (shape, start, wide, long) => drawPart(shape, [...one.map(x => x * wide),
      ...two.map(x => x * wide), ...along.map(x => x * long)],
      from.map((x, i) => x + start * along[i]), color);
    part(parts.at(-2), 0, thick, length - head);
    part(parts.at(-1), length - head, 2.6 * thick, head);
  };

  return function draw(poses, camera, theme, arrows = []) {
    const {matrix, eye} = cameraMatrix(camera, canvas.width / canvas.height);
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(...theme.sky, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT | gl.STENCIL_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    gl.useProgram(floor.program);
    gl.bindVertexArray(ground);
    gl.uniformMatrix4fv(floor.at.camera, false, matrix);
    gl.uniform1f(floor.at.reach, 4 * camera.distance);
    for (const name of ["tile", "other", "sky", "mark"]) gl.uniform3fv(floor.at[name], theme[name]);
    gl.uniform3fv(floor.at.target, camera.target);
    if (eye[2] > 0 && !uneven) gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
    gl.useProgram(body.program);
    gl.bindVertexArray(robot);
    gl.uniformMatrix4fv(body.at.camera, false, matrix);
    gl.uniform3fv(body.at.light, LIGHT);
    gl.uniform3fv(body.at.eye, eye);
    gl.uniform4fv(body.at.shadow, theme.shadow);
    gl.uniform1i(body.at.flattened, 1);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
    gl.enable(gl.STENCIL_TEST);  // where two shadows meet it is not twice as dark
    gl.stencilFunc(gl.EQUAL, 0, 255);
    gl.stencilOp(gl.KEEP, gl.KEEP, gl.INCR);
    gl.disable(gl.DEPTH_TEST);  // so near to the floor it would decide at random
    if (!uneven) drawShapes(poses);
    gl.enable(gl.DEPTH_TEST);
    gl.disable(gl.STENCIL_TEST);
    gl.disable(gl.BLEND);
    gl.uniform1i(body.at.flattened, 0);
    drawShapes(poses);
    gl.clear(gl.DEPTH_BUFFER_BIT);  // arrows are in front of all: they begin inside of the robot
    for (const arrow of arrows) drawArrow(arrow, 0.0042 * camera.distance);
  };
}

// A plain drawing --------------------------------------------------------------------------------

const DIRECTIONS = Array.from({length: 48}, (_, i) =>
  [Math.cos(2 * Math.PI * i / 48 + 1e-3), Math.sin(2 * Math.PI * i / 48 + 1e-3)]);

// The outline of a shape about its centre: where it reaches furthest, in all directions; of a mesh,
// its convex hull.
function outlineOf({kind, size, surface}, turned, {right, up}) {
  if (kind === "mesh") {
    const flat = [right, up].map(axis => [0, 3, 6].map(c => dot(turned.slice(c, c + 3), axis)));
    const best = DIRECTIONS.map(() => -Infinity), edge = DIRECTIONS.map(() => [0, 0]);
    for (let i = 0; i < surface.points.length; i += 3) {
      const point = surface.points.subarray(i, i + 3), x = dot(point, flat[0]), y = dot(point, flat[1]);
      for (let d = 0; d < DIRECTIONS.length; d++) {
        const reach = x * DIRECTIONS[d][0] + y * DIRECTIONS[d][1];
        if (reach > best[d]) [best[d], edge[d]] = [reach, [x, y]];
      }
    }
    return edge;
  }
  const axes = [0, 1, 2].map(i => {
    const axis = turned.slice(3 * i, 3 * i + 3);
    return [size[i] * dot(axis, right), size[i] * dot(axis, up)];
  });
  const along = (axis, d) => axis[0] * d[0] + axis[1] * d[1];
  const ellipse = (parts, d) => {
    const reach = parts.map(axis => along(axis, d)), length = Math.hypot(...reach) || 1;
    return [0, 1].map(k => parts.reduce((sum, axis, i) => sum + axis[k] * reach[i] / length, 0));
  };
  return DIRECTIONS.map(d => {
    const corner = axis => axis.map(x => x * Math.sign(along(axis, d)));
    if (kind === "box") return axes.map(corner).reduce((a, b) => [a[0] + b[0], a[1] + b[1]]);
    if (kind === "sphere" || kind === "ellipsoid") return ellipse(axes, d);
    const end = corner(axes[2]);
    const rim = kind === "capsule" ? d.map(x => x * size[0]) : ellipse(axes.slice(0, 2), d);
    return [end[0] + rim[0], end[1] + rim[1]];
  });
}

const css = (color, light = 1) =>
  `rgb(${color.slice(0, 3).map(x => Math.round(255 * Math.min(1, x * light))).join(" ")})`;

function paperView(canvas, shapes, uneven) {
  const pen = canvas.getContext("2d");
  return function draw(poses, camera, theme, arrows = []) {
    const axes = axesOf(camera), {width, height} = canvas;
    const scale = height / (2 * camera.distance * Math.tan(FIELD / 2));
    const at = point => {
      const gap = point.map((x, i) => x - camera.target[i]);
      return [width / 2 + scale * dot(gap, axes.right), height / 2 - scale * dot(gap, axes.up)];
    };
    const polygon = corners => {
      pen.beginPath();
      corners.forEach(([x, y]) => pen.lineTo(x, y));
      pen.closePath();
    };
    pen.fillStyle = css(theme.sky);
    pen.fillRect(0, 0, width, height);
    const reach = 3 * camera.distance, side = 0.25;
    const [x0, y0] = camera.target.map(x => Math.round(x / side) * side);
    pen.lineWidth = Math.max(1, height / 400);
    for (let i = -Math.ceil(reach / side); i <= reach / side; i++) {
      for (const ends of [[[x0 + i * side, y0 - reach, 0], [x0 + i * side, y0 + reach, 0]],
        [[x0 - reach, y0 + i * side, 0], [x0 + reach, y0 + i * side, 0]]]) {
        pen.strokeStyle = css(Math.abs(ends[0][0]) + Math.abs(ends[1][0]) < 1e-6 ? theme.mark : theme.other);
        pen.beginPath();
        ends.map(at).forEach(([x, y]) => pen.lineTo(x, y));
        pen.stroke();
      }
    }
    const depths = poses.map(({place}) => dot(place, axes.back));
    const order = depths.map((_, i) => i).sort((a, b) => depths[a] - depths[b]);
    pen.lineJoin = "round";
    for (const i of order) {
      if (uneven && shapes[i].body === 0) continue;
      const [x, y] = at(poses[i].place);
      const edge = outlineOf(shapes[i], poses[i].turned, axes);
      polygon(edge.map(([u, v]) => [x + scale * u, y - scale * v]));
      pen.fillStyle = css(shapes[i].color, 0.96);
      pen.strokeStyle = css(shapes[i].color, 0.6);
      pen.fill();
      pen.stroke();
    }
    const thick = 0.0042 * camera.distance * scale;
    for (const {from, to, color} of arrows) {
      const a = at(from), b = at(to), length = Math.hypot(b[0] - a[0], b[1] - a[1]);
      if (length < 1) continue;
      const [x, y] = [(b[0] - a[0]) / length, (b[1] - a[1]) / length], head = Math.min(7 * thick, 0.6 * length);
      const spot = (along, aside) => [a[0] + along * x - aside * y, a[1] + along * y + aside * x];
      const neck = length - head, wide = 2.6 * thick;
      polygon([spot(0, thick), spot(neck, thick), spot(neck, wide), b, spot(neck, -wide), spot(neck, -thick),
        spot(0, -thick)]);
      pen.fillStyle = css(color);
      pen.fill();
    }
  };
}
