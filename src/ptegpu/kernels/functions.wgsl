// Functions that WGSL lacks, or promises too loosely for PyTorch's results (sin to 2⁻¹¹, atan to 4096 ULP).
// Each f32 result is within a few 1e-7, relative where it nears zero. Polynomials are minimax fits on the interval
// named beside them. Blocks are separated by empty lines, one function each: a module gets those that it calls.

fn nan() -> f32 { return bitcast<f32>(0x7fc00000u | (P.groups & 0u)); }

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// x as bfloat16 has it: the upper 16 bits, rounded to nearest, ties to even
fn bfloat16(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  return select(bitcast<f32>((bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u), x, is_nan(x));
}

fn is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

// of zeros with different signs, the first
fn lesser(a: f32, b: f32) -> f32 { return select(b, a, is_nan(a) || a <= b); }

fn greater(a: f32, b: f32) -> f32 { return select(b, a, is_nan(a) || a >= b); }

fn within(x: f32, low: f32, high: f32) -> f32 { return lesser(greater(x, low), high); }

// |x| ≤ π/4
fn quarter_sin(x: f32) -> f32 {
  let t = x * x;
  let p = fma(fma(-0.00019585494, t, 0.00833273772), t, -0.166666642);
  return fma(x * t, p, x);
}

// |x| ≤ π/4
fn quarter_cos(x: f32) -> f32 {
  let t = x * x;
  let p = fma(fma(2.45455194e-05, t, -0.0013888292), t, 0.0416666642);
  return fma(t * t, p, fma(-0.5, t, 1.0));
}

fn quarters(x: f32) -> f32 { return round(x * 0.63661977); }

// x less `turns` quarter turns and `quadrant` more of them; π/2 is in three parts, the first two of so few bits that
// their products with a count up to 2¹⁴ stay (nearly) exact
fn turned(x: f32, turns: f32, quadrant: i32) -> f32 {
  let r = ((x - turns * 1.5703125) - turns * 0.00048375129699707031) - turns * 7.5497899e-8;
  let v = select(quarter_sin(r), quarter_cos(r), (quadrant & 1) == 1);
  return select(v, -v, (quadrant & 2) == 2);
}

// x for any finite |x| ≥ 2, by the bits of 2/π that matter at its exponent: |x| · 2/π modulo 4 as a number of 64 bits,
// of which two are quarter turns
fn far_turned(x: f32, quadrant: i32) -> f32 {
  let bits = bitcast<u32>(x);
  let m = (bits << 8u) | 0x80000000u;
  let exponent = (bits >> 23u) & 255u;
  let last = product(m, two_over_pi(exponent - 64u));
  let middle = product(m, two_over_pi(exponent - 96u));
  var low = last.y + middle.x;
  var high = m * two_over_pi(exponent - 128u) + middle.y + select(0u, 1u, low < last.y);
  let beyond = (high & 0x20000000u) != 0u;
  let turns = i32((high >> 30u) + select(0u, 1u, beyond));
  high &= 0x3fffffffu;
  if (beyond) {
    high = 0x40000000u - high - select(1u, 0u, low == 0u);
    low = 0u - low;
  }
  let r = (f32(high) + f32(low) * 2.3283064e-10) * 1.46291808e-9;
  return turned(select(r, -r, beyond != (x < 0.0)), 0.0, select(turns, -turns, x < 0.0) + quadrant);
}

// 32 bits from bit `at` on, counted from the front: 32 zeros, then 2/π
fn two_over_pi(at: u32) -> u32 {
  var words = array<u32, 7>(0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u);
  let k = at >> 5u;
  let shift = at & 31u;
  return select((words[k] << shift) | (words[k + 1u] >> (32u - shift)), words[k], shift == 0u);
}

// the low and the high word
fn product(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
  return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u));
}

fn sine(x: f32) -> f32 {
  if (abs(x) > 16384.0 && !is_inf(x)) { return far_turned(x, 0); }
  let turns = quarters(x);
  return turned(x, turns, i32(turns));
}

fn cosine(x: f32) -> f32 {
  if (abs(x) > 16384.0 && !is_inf(x)) { return far_turned(x, 1); }
  let turns = quarters(x);
  return turned(x, turns, i32(turns) + 1);
}

fn tangent(x: f32) -> f32 { return sine(x) / cosine(x); }

// |x| ≤ 1
fn unit_atan(x: f32) -> f32 {
  let t = x * x;
  var p = fma(fma(-0.00250857649, t, 0.0139964838), t, -0.0366702862);
  p = fma(fma(fma(p, t, 0.0631821975), t, -0.0868904442), t, 0.110420354);
  p = fma(fma(fma(p, t, -0.142796159), t, 0.199997902), t, -0.333333313);
  return fma(x * t, p, x);
}

fn arctan(x: f32) -> f32 {
  if (abs(x) <= 1.0) { return unit_atan(x); }
  return select(-1.57079633, 1.57079633, x > 0.0) - unit_atan(1.0 / x);
}

fn arctan2(y: f32, x: f32) -> f32 {
  if (is_nan(x) || is_nan(y)) { return nan(); }
  let low = min(abs(x), abs(y));
  let high = max(abs(x), abs(y));
  var r = 0.0;
  if (high > 0.0) { r = unit_atan(select(low / high, 1.0, low == high)); }
  if (abs(y) > abs(x)) { r = 1.57079633 - r; }
  if ((bitcast<u32>(x) >> 31u) == 1u) { r = 3.14159265 - r; }
  return select(r, -r, (bitcast<u32>(y) >> 31u) == 1u);
}

// |x| ≤ 1/2
fn half_asin(x: f32) -> f32 {
  let t = x * x;
  let p = fma(fma(fma(fma(0.0383282378, t, 0.0264333952), t, 0.0450202115), t, 0.0749876201), t, 0.166666731);
  return fma(x * t, p, x);
}

fn arcsin(x: f32) -> f32 {
  let m = abs(x);
  if (m <= 0.5) { return half_asin(x); }
  if (!(m <= 1.0)) { return nan(); }
  let r = 1.57079633 - 2.0 * half_asin(sqrt(0.5 * (1.0 - m)));
  return select(r, -r, x < 0.0);
}

fn arccos(x: f32) -> f32 {
  let m = abs(x);
  if (m <= 0.5) { return 1.57079633 - half_asin(x); }
  if (!(m <= 1.0)) { return nan(); }
  let r = 2.0 * half_asin(sqrt(0.5 * (1.0 - m)));
  return select(r, 3.14159265 - r, x < 0.0);
}

// the polynomial: |x| ≤ 1/2
fn expm1(x: f32) -> f32 {
  if (!(abs(x) <= 0.5)) { return exp(x) - 1.0; }
  var p = fma(fma(0.000199794988, x, 0.00139821961), x, 0.00833312795);
  p = fma(fma(fma(p, x, 0.0416657925), x, 0.166666672), x, 0.5);
  return x * fma(x, p, 1.0);  // a product: -0 stays -0
}

// log(1 + x) = 2 atanh(x / (2 + x)); the polynomial: atanh for |s| ≤ 1/3
fn log1p(x: f32) -> f32 {
  if (!(abs(x) <= 0.5)) { return log(1.0 + x); }
  let s = x / (2.0 + x);
  let t = s * s;
  let p = fma(fma(fma(0.136590719, t, 0.140840888), t, 0.200049937), t, 0.333333135);
  return 2.0 * fma(s * t, p, s);
}

// the polynomial: |x| ≤ 1; exp of a half, twice, where exp alone would overflow
fn hyperbolic_sine(x: f32) -> f32 {
  let m = abs(x);
  if (m <= 1.0) {
    let t = x * x;
    return fma(x * t, fma(fma(0.000202592026, t, 0.00833175983), t, 0.166666761), x);
  }
  let e = exp(0.5 * m);
  let r = 0.5 * e * e - 0.5 / e / e;
  return select(r, -r, x < 0.0);
}

fn hyperbolic_cosine(x: f32) -> f32 {
  let e = exp(0.5 * abs(x));
  return 0.5 * e * e + 0.5 / e / e;
}

// the polynomial: |x| ≤ 0.6; beyond 15 the result is 1
fn hyperbolic_tangent(x: f32) -> f32 {
  let m = abs(x);
  if (m <= 0.6) {
    let t = x * x;
    var p = fma(fma(-0.00628366508, t, 0.0211214535), t, -0.053876318);
    p = fma(fma(p, t, 0.133329332), t, -0.333333313);
    return x * fma(t, p, 1.0);  // a product: -0 stays -0
  }
  let r = 1.0 - 2.0 / (exp(2.0 * lesser(m, 15.0)) + 1.0);
  return select(r, -r, x < 0.0);
}

fn arsinh(x: f32) -> f32 {
  let m = abs(x);
  var r = log(m) + 0.693147181;
  if (m < 1e9) { r = log1p(m + m * m / (1.0 + sqrt(m * m + 1.0))); }
  return select(r, -r, x < 0.0);
}

fn arcosh(x: f32) -> f32 {
  if (!(x >= 1.0)) { return nan(); }
  if (x > 1e9) { return log(x) + 0.693147181; }
  let t = x - 1.0;
  return log1p(t + sqrt(t * (t + 2.0)));
}

fn artanh(x: f32) -> f32 {
  let m = abs(x);
  if (!(m <= 1.0)) { return nan(); }
  let r = 0.5 * log1p(2.0 * m / (1.0 - m));
  return select(r, -r, x < 0.0);
}

// the polynomials: erf for |x| ≤ 1, the logarithm of erfc for 1 ≤ |x| ≤ 4; beyond 4 the result is 1
fn erf(x: f32) -> f32 {
  let m = lesser(abs(x), 4.0);
  if (m <= 1.0) {
    let t = x * x;
    var p = fma(fma(-0.000566015311, t, 0.00492478907), t, -0.0267177075);
    p = fma(fma(fma(p, t, 0.112804115), t, -0.376123548), t, 1.12837911);
    return x * p;
  }
  var p = fma(fma(fma(0.0001855749, m, -0.00293961586), m, 0.0218053516), m, -0.103037439);
  p = fma(fma(fma(p, m, -0.638225615), m, -1.12704003), m, -0.000353708921);
  let r = 1.0 - exp(p);
  return select(r, -r, x < 0.0);
}

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }

// WGSL's pow takes no negative base, and may take no zero
fn power(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0 || (abs(x) == 1.0 && is_inf(y))) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return nan(); }
  if (y == 1.0) { return x; }
  var r = select(0.0, 1.0 / abs(x), y < 0.0);
  if (x != 0.0) { r = pow(abs(x), y); }
  if ((bitcast<u32>(x) >> 31u) == 0u) { return r; }
  if (floor(y) != y) { return select(nan(), r, x == 0.0 || is_inf(x)); }
  return select(r, -r, abs(y) < 16777216.0 && floor(y * 0.5) * 2.0 != y);
}

fn whole_power(x: i32, y: i32) -> i32 {
  if (y < 0) {
    let one = select(1, x, (y & 1) == 1);
    return select(0, one, x == 1 || x == -1);
  }
  var r = 1;
  var b = x;
  var e = y;
  while (e > 0) {
    r = select(r, r * b, (e & 1) == 1);
    b = b * b;
    e = e >> 1u;
  }
  return r;
}

// exact, bit by bit of the quotient: the difference of numbers within a factor of two is not rounded, as a product is
fn fmod(x: f32, y: f32) -> f32 {
  if (is_inf(y) && !is_inf(x)) { return x; }
  let d = abs(y);
  var r = abs(x);
  if (!(d > 0.0) || is_inf(r)) { return nan(); }
  while (r >= d) {
    let s = ldexp(d, i32(bitcast<u32>(r) >> 23u) - i32(bitcast<u32>(d) >> 23u));
    r -= select(0.5 * s, s, r >= s);
  }
  return select(r, -r, x < 0.0);
}

fn remainder(x: f32, y: f32) -> f32 {
  let r = fmod(x, y);
  return select(r, r + y, r != 0.0 && (r < 0.0) != (y < 0.0));
}

fn floor_quotient(x: f32, y: f32) -> f32 {
  if (y == 0.0) { return x / y; }
  let r = fmod(x, y);
  return round((x - r) / y) - select(0.0, 1.0, r != 0.0 && (r < 0.0) != (y < 0.0));
}

// trunc of the correctly rounded quotient: a division may be off by two units
fn trunc_quotient(x: f32, y: f32) -> f32 {
  let q = x / y;
  let error = fma(-q, y, x) / y;
  return trunc(select(q, q + error, abs(error) < abs(q)));
}

// `%` of negative ints is wrong on some GPUs (Vulkan leaves it undefined); `/` is right on all
fn whole_fmod(x: i32, y: i32) -> i32 { return x - x / y * y; }

fn whole_remainder(x: i32, y: i32) -> i32 {
  let r = whole_fmod(x, y);
  return select(r, r + y, r != 0 && (r < 0) != (y < 0));
}

fn whole_floor_quotient(x: i32, y: i32) -> i32 {
  return x / y - select(0, 1, whole_fmod(x, y) != 0 && (x < 0) != (y < 0));
}
