#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Where the numbers in src/engine/tuner/gaussian_test.c come from: the same regression by other means. The covariance is
# inverted by Gauss-Jordan elimination in exact fractions (no Cholesky factor), the determinant is the product of its
# pivots, the expected improvement is integrated by Simpson's rule (no closed form).
from fractions import Fraction as F
from math import exp, log, pi, sqrt, erf
X=[(0.1,0.2),(0.5,0.9),(0.8,0.4),(0.3,0.6),(0.95,0.05)]
Y=[3.0,-1.0,4.0,1.5,-2.0]
L=(0.3,0.7); H=1.2; N=0.15
mean=sum(Y)/5; scale=sqrt(sum((y-mean)**2 for y in Y)/5)
z=[F((y-mean)/scale) for y in Y]


def k(a, b):
    product = H * H
    for p, q, l in zip(a, b, L):
        r = sqrt(3) * abs(p - q) / l
        product *= (1 + (1 + r) * exp(-r)) / 2
    return product


K=[[F(k(a,b))+(F(N*N) if i==j else 0) for j,b in enumerate(X)] for i,a in enumerate(X)]
n=5
A=[row[:]+[F(int(i==j)) for j in range(n)] for i,row in enumerate(K)]
det=F(1)
for c in range(n):
    p=max(range(c,n),key=lambda r:abs(A[r][c]))
    if p!=c: A[c],A[p]=A[p],A[c]; det=-det
    det*=A[c][c]
    d=A[c][c]; A[c]=[v/d for v in A[c]]
    for r in range(n):
        if r!=c:
            f=A[r][c]; A[r]=[v-f*w for v,w in zip(A[r],A[c])]
inv=[row[n:] for row in A]
w=[sum(inv[i][j]*z[j] for j in range(n)) for i in range(n)]
ll=-0.5*float(sum(z[i]*w[i] for i in range(n)))-0.5*log(float(det))-n/2*log(2*pi)
print("likelihood %.15g"%ll)
for x in [(0.1,0.2),(0.5,0.5),(0.0,1.0),(0.9,0.2)]:
    kk=[F(k(x,a)) for a in X]
    m=sum(kk[i]*w[i] for i in range(n))
    v=F(H*H)-sum(kk[i]*inv[i][j]*kk[j] for i in range(n) for j in range(n))
    print("{{%g, %g}, %.15g, %.15g},"%(x[0],x[1],mean+scale*float(m),scale*sqrt(float(v))))
def ei(m,s,b):
    # by integration of max(y-b,0) times the density (Simpson), not by the closed form
    from math import fsum
    lo=b; hi=max(b,m)+12*s; M=200000; h=(hi-lo)/M
    return fsum((1 if i in (0, M) else 4 if i % 2 else 2) * (lo + i * h - b)
                * exp(-0.5 * ((lo + i * h - m) / s) ** 2) / (s * sqrt(2 * pi)) for i in range(M + 1)) * h / 3
for a in [(0,1,0),(1,2,1.5),(-1,0.5,0),(5,0.1,4),(3,1.5,7)]: print("{%g, %g, %g, %.12g},"%(a+(ei(*a),)))
