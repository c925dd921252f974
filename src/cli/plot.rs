//! A chart of how speed grows with threads, as SVG.

use std::fmt::Write;

/// Width and height of the picture, and of the margins around the chart.
const SIZE: (f64, f64) = (720.0, 480.0);
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;

/// Colours that colour-blind people tell apart (Okabe and Ito, 2008).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// One test with its speed at each number of threads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// The test's name.
    pub(super) name: String,
    /// Threads and tokens per second, by threads.
    pub(super) points: Vec<(usize, f64)>,
}

/// Speed over the speed with the fewest threads, by threads, with the line that a perfect division of the work
/// would follow. There must be a point; all speeds must be above 0.
pub(super) fn thread_scaling(title: &str, series: &[Series]) -> String {
    let counts = series.iter().flat_map(|series| series.points.iter().map(|&(threads, _)| threads));
    let mut counts: Vec<usize> = counts.collect();
    counts.sort_unstable();
    counts.dedup();
    let (fewest, most) = (counts[0], counts[counts.len() - 1]);
    let ideal = most as f64 / fewest as f64;
    let gains = series.iter().flat_map(Series::gains).map(|(_, gain)| gain);
    let highest = gains.fold(ideal, f64::max) * 1.05;

    let chart = Chart { threads: most as f64 * 1.03, highest };
    let mut svg = chart.frame(title, &counts, fewest);
    let line = [(fewest, 1.0), (most, ideal)];
    let _ = writeln!(
        svg,
        r##"<polyline points="{}" fill="none" stroke="#888" stroke-dasharray="6 4"/>"##,
        chart.path(&line)
    );
    chart.legend(&mut svg, 0, "#888", "ideal");
    for (index, series) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let gains = series.gains();
        let path = chart.path(&gains);
        let _ = writeln!(svg, r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>"#);
        for (&(threads, gain), &(_, speed)) in gains.iter().zip(&series.points) {
            let (x, y) = chart.place(threads, gain);
            let _ = writeln!(
                svg,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{colour}"><title>{}: {speed:.1} tok/s on {threads}</title></circle>"#,
                escape(&series.name)
            );
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{:.1}" font-size="10" fill="{colour}">{speed:.0}</text>"#,
                x + 6.0,
                y + 12.0
            );
        }
        chart.legend(&mut svg, index + 1, colour, &series.name);
    }
    svg + "</svg>\n"
}

impl Series {
    /// Speed over that of the first point.
    fn gains(&self) -> Vec<(usize, f64)> {
        let first = self.points.first().map_or(1.0, |&(_, speed)| speed);
        self.points.iter().map(|&(threads, speed)| (threads, speed / first)).collect()
    }
}

/// The axes: from 0 to these.
struct Chart {
    threads: f64,
    highest: f64,
}

impl Chart {
    fn place(&self, threads: usize, gain: f64) -> (f64, f64) {
        let (width, height) = (SIZE.0 - LEFT - RIGHT, SIZE.1 - TOP - BOTTOM);
        (LEFT + threads as f64 / self.threads * width, SIZE.1 - BOTTOM - gain / self.highest * height)
    }

    fn path(&self, points: &[(usize, f64)]) -> String {
        let place = |&(threads, gain): &(usize, f64)| {
            let (x, y) = self.place(threads, gain);
            format!("{x:.1},{y:.1}")
        };
        points.iter().map(place).collect::<Vec<_>>().join(" ")
    }

    /// Everything but the lines: background, title, axes with their labels and grid.
    fn frame(&self, title: &str, counts: &[usize], fewest: usize) -> String {
        let (width, height) = SIZE;
        let (left, right, bottom) = (LEFT, width - RIGHT, height - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{left}\" y=\"26\" font-size=\"15\">{}</text>\n",
            escape(title)
        );
        let step = grid_step(self.highest);
        let mut gain = 0.0;
        while gain <= self.highest {
            let (_, y) = self.place(0, gain);
            let _ = writeln!(svg, r##"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e4e4e4"/>"##);
            let _ = writeln!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{gain}×</text>"#, left - 8.0, y + 4.0);
            gain += step;
        }
        for &threads in counts {
            let (x, _) = self.place(threads, 0.0);
            let _ =
                writeln!(svg, r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{}" stroke="#333"/>"##, bottom + 5.0);
            let _ = writeln!(svg, r#"<text x="{x:.1}" y="{}" text-anchor="middle">{threads}</text>"#, bottom + 19.0);
        }
        let _ = writeln!(
            svg,
            r##"<polyline points="{left},{TOP} {left},{bottom} {right},{bottom}" fill="none" stroke="#333"/>"##
        );
        let middle = ((left + right) / 2.0, (TOP + bottom) / 2.0);
        let _ = writeln!(svg, r#"<text x="{}" y="{}" text-anchor="middle">threads</text>"#, middle.0, height - 14.0);
        let threads = if fewest == 1 { "1 thread".to_owned() } else { format!("{fewest} threads") };
        let _ = writeln!(
            svg,
            r#"<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">speed over {threads}</text>"#,
            middle.1
        );
        svg
    }

    fn legend(&self, svg: &mut String, line: usize, colour: &str, name: &str) {
        let (x, y) = (SIZE.0 - RIGHT + 14.0, TOP + 12.0 + 20.0 * line as f64);
        let _ = writeln!(svg, r#"<rect x="{x}" y="{}" width="14" height="4" fill="{colour}"/>"#, y - 6.0);
        let _ = writeln!(svg, r#"<text x="{}" y="{y}">{}</text>"#, x + 20.0, escape(name));
    }
}

/// A distance of lines of which there are at most 9 up to `highest`: 1, 2 or 5 times a power of ten.
fn grid_step(highest: f64) -> f64 {
    let mut step = 0.5;
    for factor in [2.0, 2.0, 2.5].into_iter().cycle() {
        if highest / step <= 8.0 {
            break;
        }
        step *= factor;
    }
    step
}

/// Text that is safe inside an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, points: &[(usize, f64)]) -> Series {
        Series { name: name.into(), points: points.to_vec() }
    }

    /// The y coordinates of the circles of a colour.
    fn heights(svg: &str, colour: &str) -> Vec<f64> {
        let circles = svg.lines().filter(|line| line.starts_with("<circle") && line.contains(colour));
        let y = |line: &str| line.split("cy=\"").nth(1)?.split('"').next()?.parse().ok();
        circles.map(|line| y(line).unwrap()).collect()
    }

    #[test]
    fn perfect_scaling_lies_on_the_ideal_line() {
        let svg = thread_scaling(
            "a < b & c",
            &[series("pp512", &[(1, 10.0), (2, 20.0), (8, 80.0)]), series("tg1", &[(1, 5.0), (8, 5.0)])],
        );
        let ideal = svg.lines().find(|line| line.contains("dasharray")).unwrap();
        let ends: Vec<f64> = ideal.split('"').nth(1).unwrap().split([' ', ',']).map(|n| n.parse().unwrap()).collect();
        let perfect = heights(&svg, COLOURS[0]);
        assert_eq!(perfect.len(), 3);
        assert_eq!((perfect[0], perfect[2]), (ends[1], ends[3]));
        let flat = heights(&svg, COLOURS[1]);
        assert_eq!(flat, [perfect[0]; 2], "no gain stays where one thread is");
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(">pp512</text>") && svg.contains(">ideal</text>"));
        assert!(svg.contains(">speed over 1 thread</text>") && svg.contains(">threads</text>"));
        for count in ["1", "2", "8"] {
            assert!(svg.contains(&format!("text-anchor=\"middle\">{count}</text>")), "{count}");
        }
    }

    #[test]
    fn the_picture_is_well_formed_and_within_its_frame() {
        // Faster than ideal, and not from one thread on.
        let svg = thread_scaling("t", &[series("x", &[(2, 1.0), (4, 9.0)])]);
        for tag in ["svg", "text", "circle", "title"] {
            let opened = svg.matches(&format!("<{tag} ")).count() + svg.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(heights(&svg, COLOURS[0]).iter().all(|&y| (TOP..SIZE.1 - BOTTOM).contains(&y)), "{svg}");
        assert!(svg.contains(">speed over 2 threads</text>") && !svg.contains("NaN"));
    }

    #[test]
    fn grids_have_few_round_lines() {
        let steps = [1.05, 4.2, 8.4, 16.8, 67.0].map(grid_step);
        assert_eq!(steps, [0.5, 1.0, 2.0, 5.0, 10.0]);
    }
}
